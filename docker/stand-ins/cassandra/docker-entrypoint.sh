#!/bin/bash
# Like the public image: it uses MAX_HEAP_SIZE and JVM_EXTRA_OPTS, and the node runs as process 1 and user cassandra.
# The public image's other variables have no effect here.
set -euo pipefail
[[ ${1:-} == cassandra ]] || exec "$@"

lib=/opt/cassandra/lib etc=/etc/cassandra data=/var/lib/cassandra
# At every start, because the container's address may change.
sed "s/ADDRESS/$(hostname -i | cut -d ' ' -f 1)/" "$etc/cassandra.yaml" >/tmp/cassandra.yaml
chown cassandra "$data"

options=(-Xms"${MAX_HEAP_SIZE:-512m}" -Xmx"${MAX_HEAP_SIZE:-512m}" -Xss256k -XX:MaxDirectMemorySize=256m)
options+=(-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -XX:+ExitOnOutOfMemoryError)
options+=(-javaagent:"$(echo "$lib"/jamm-*.jar)" -Djdk.attach.allowAttachSelf=true "@$etc/java.options")
options+=(-Dio.netty.tryReflectionSetAccessible=true -Djava.net.preferIPv4Stack=true -Dcassandra-foreground=yes)
options+=(-Dcassandra.config=file:///tmp/cassandra.yaml -Dcassandra.storagedir="$data" -Dcassandra.logdir=/tmp)
options+=(-Dlogback.configurationFile="file://$etc/logback.xml")
# A single node has no neighbours to wait for.
options+=(-Dcassandra.skip_wait_for_gossip_to_settle=0 -Dcassandra.ring_delay_ms=0 -Dcassandra.load_ring_state=false)

# shellcheck disable=SC2086 - several options in one variable, as in Cassandra's own scripts
exec setpriv --reuid=cassandra --regid=cassandra --clear-groups java "${options[@]}" ${JVM_EXTRA_OPTS:-} \
    -cp "$etc:$lib/*" org.apache.cassandra.service.CassandraDaemon
