"""The demo of tables: the republisher and the service that fills tables are killed again and again; each row is there once.

There are two tables, one of Delta Lake and one in Cassandra, and one service writes each row into both.

    python -m services.demo_ingest

It is `services.demo` with another service at the end. `tables` runs and judges that one; `spark_query` asks Spark.
"""
