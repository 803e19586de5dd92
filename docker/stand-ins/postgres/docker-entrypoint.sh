#!/bin/bash
# Like the public image with POSTGRES_HOST_AUTH_METHOD=trust: it makes the database at its first start, and runs as user postgres.
# The public image's other variables have no effect here.
set -euo pipefail
[[ ${1:-} == postgres ]] || exec "$@"
shift

chown postgres:postgres "$PGDATA"
as_postgres=(setpriv --reuid=postgres --regid=postgres --clear-groups)
if [[ ! -s $PGDATA/PG_VERSION ]]; then
    "${as_postgres[@]}" initdb --username postgres --encoding UTF8 --auth trust
    echo "host all all all trust" >>"$PGDATA/pg_hba.conf"
fi
exec "${as_postgres[@]}" postgres -c listen_addresses='*' "$@"
