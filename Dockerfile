# Images for services:
#
#     docker build --target inprocess --tag sqe-chain:inprocess .    the engine in one process: Python, no Java
#     docker build --target spark --tag sqe-chain:spark .            Spark with Java; docker-compose.yml uses this one
#
# For services of your own: FROM one of them, and COPY your modules into /app. docs/production.md has the settings.
FROM python:3.11-slim AS build
# Two builds give the same files: compiled modules depend on the source alone.
ARG SOURCE_DATE_EPOCH=0
ENV SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH PYTHONHASHSEED=0 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv --without-pip /opt/sqe-chain
COPY docker/build.lock /locks/
RUN python -m venv /build && /build/bin/pip install --require-hashes --requirement /locks/build.lock
COPY docker/inprocess.lock /locks/
RUN pip --python /opt/sqe-chain/bin/python install --require-hashes --requirement /locks/inprocess.lock
COPY pyproject.toml README.md CHANGELOG.md LICENSE /source/
COPY docs/runbook.md /source/docs/
COPY scripts/index_page.py /source/scripts/
COPY sqe_chain /source/sqe_chain
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /source \
    && pip --python /opt/sqe-chain/bin/python install --no-deps /wheels/*.whl

FROM python:3.11-slim AS service
RUN useradd --create-home --uid 1000 services
WORKDIR /app
# The example services are not part of the package: Python imports them from here.
COPY services services
# A log shows each line when the service writes it. Metrics and probes listen within the container alone; to open them:
# SQE_CHAIN_METRICS_HOST=0.0.0.0
ENV PATH=/opt/sqe-chain/bin:$PATH PYTHONUNBUFFERED=1 PYTHONPATH=/app SQE_CHAIN_METRICS_PORT=9400
HEALTHCHECK --interval=15s --timeout=5s --start-period=2m CMD ["python", "-c", \
    "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"SQE_CHAIN_METRICS_PORT\"]}/live', timeout=4)"]
CMD ["sqe-chain", "--help"]

FROM service AS inprocess
COPY --from=build /opt/sqe-chain /opt/sqe-chain
USER 1000

FROM build AS build-spark
COPY docker/spark.lock /locks/
RUN pip --python /opt/sqe-chain/bin/python install --require-hashes --requirement /locks/spark.lock

FROM service AS spark
# The JRE's post-installation expects that directory, which slim images lack. Spark's scripts call ps.
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/cache/ldconfig /var/log/*
COPY --from=build-spark /opt/sqe-chain /opt/sqe-chain
USER 1000
