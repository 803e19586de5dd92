# The example services: Python, Java for Spark, everything in requirements.lock, and this project.
# For docker-compose.yml; one image is simulator, services, audit, Spark master and Spark worker.
FROM python:3.11-slim

# The JRE's post-installation expects that directory, which slim images lack.
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

# First what changes seldom. Tools for development come along: there is one lock, and its hashes are checked.
COPY requirements.lock /source/
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement /source/requirements.lock

COPY . /source
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation /source \
    && useradd --create-home --uid 1000 services

# The services are no part of the package: they are found here.
WORKDIR /app
COPY services services
USER services
# A container's log shows each line when it is written.
ENV PYTHONUNBUFFERED=1 PYTHONPATH=/app
# Metrics and probes (--metrics-port) listen within the container alone; to open them: SQE_CHAIN_METRICS_HOST=0.0.0.0
CMD ["sqe-chain", "--help"]
