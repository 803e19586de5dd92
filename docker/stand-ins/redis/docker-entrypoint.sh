#!/bin/sh
# Like the public image: given only options it runs redis-server, as user redis and without protected mode.
set -e
case "$1" in -* | *.conf) set -- redis-server "$@" ;; esac
[ "$1" = redis-server ] || exec "$@"
shift
chown redis:redis .
exec setpriv --reuid=redis --regid=redis --clear-groups redis-server --protected-mode no "$@"
