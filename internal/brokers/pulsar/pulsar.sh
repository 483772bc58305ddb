#!/usr/bin/env bash
# Apache Pulsar standalone (broker + bookie + RocksDB metadata, one JVM) on 127.0.0.1, from Maven artifacts.
#
#   pulsar.sh install          resolve the jars into $BROKER_CACHE (needs mvn; nothing to do when they are there)
#   pulsar.sh check            0: jars and class archive are cached, 3: jars only, 4: no jars
#   pulsar.sh warm  DATA_DIR   boot once in a new DATA_DIR and keep a class archive: later boots take 1/3 less
#   pulsar.sh start DATA_DIR   install, boot, wait until usable, print the URLs (also in DATA_DIR/env)
#   pulsar.sh stop  DATA_DIR   SIGTERM, wait, SIGKILL, by pid
#   pulsar.sh kill  DATA_DIR   SIGKILL at once (crash tests; `start` again recovers)
#   pulsar.sh pid   DATA_DIR   prints the pid if the broker runs, else fails
#
# DATA_DIR (data, conf, logs, pid file; a restart on it keeps the data) may also come from the environment.
# Other settings, all optional:
#   BROKER_CACHE   jar cache          (default ${XDG_CACHE_HOME:-$HOME/.cache}/wal-brokers/pulsar)
#   BROKER_PORT, WEB_PORT, BOOKIE_PORT   default: free ones, remembered in DATA_DIR/ports
#   JOURNAL_SYNC   true (default): the bookie fsyncs before it acks; false: page cache only
#   DEDUP          true: broker deduplication on for every namespace (default false)
#   MAX_ENTRIES_PER_LEDGER   entries before a ledger rolls over (default 50000; e.g. 10 to test truncation)
#   EXTRA_CONF     extra standalone.conf lines (they win over the ones below)
#   JAVA           java command (default $JAVA_HOME/bin/java, else java; 17 or newer)
#   HEAP, DIRECT   -Xmx / -XX:MaxDirectMemorySize (default 1g / 512m)
#   JAVA_OPTS      default "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC": quick boot, small; set it empty to benchmark
#   START_TIMEOUT  seconds to wait for a usable broker (default 120)
#   STOP_TIMEOUT   seconds between SIGTERM and SIGKILL (default 20)
#   NO_CDS         set: `start` uses no class archive
# The caller may leave locks on descriptors 3 and 4: this script keeps them open, the broker does not get them.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_CACHE=${BROKER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/wal-brokers/pulsar}
JAVA=${JAVA:-${JAVA_HOME:+$JAVA_HOME/bin/}java}

die() { echo "pulsar.sh: $*" >&2; exit 1; }

# True if pid $1 is the broker of folder $2 (and not a reused pid); a zombie's command line is empty.
alive() { [ -n "${1:-}" ] && grep -qaF "$2/standalone.conf" "/proc/$1/cmdline" 2>/dev/null; }
running() { local pid; pid=$(cat "$1/pid" 2>/dev/null) && alive "$pid" "$1" && echo "$pid"; }

wanted() { sha256sum <"$here/pom.xml" | cut -d' ' -f1; }
installed() { [ "$(cat "$BROKER_CACHE/installed" 2>/dev/null || true)" = "$(wanted)" ]; }

check() {
  installed || exit 4
  [ -e "$(archive)" ] || exit 3
}

install() {
  installed && return 0
  command -v mvn >/dev/null 2>&1 || die "no 'mvn' on PATH: install Maven 3.8 or newer (only 'install' needs it)"
  mkdir -p "$BROKER_CACHE"; BROKER_CACHE=$(cd "$BROKER_CACHE" && pwd)
  exec 9>"$BROKER_CACHE/lock"                 # two installs at once: the second waits
  flock -w "${INSTALL_TIMEOUT:-900}" 9 || die "another install holds $BROKER_CACHE/lock"
  if ! installed; then
    rm -rf "$BROKER_CACHE/lib" "$BROKER_CACHE/installed" "$BROKER_CACHE"/*.jsa
    timeout "${INSTALL_TIMEOUT:-900}" mvn -q -B -Dstyle.color=never -f "$here/pom.xml" \
      dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$BROKER_CACHE/lib" >&2 ||
      die "mvn could not fetch the jars"
    wanted >"$BROKER_CACHE/installed"         # last: a half-copied folder is never taken for a whole one
  fi
  exec 9>&-
}

free_port() {                                  # below the ephemeral range, nothing listening
  local p
  while :; do
    p=$((20000 + RANDOM % 12000))
    case " $* " in *" $p "*) continue ;; esac
    (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || { echo "$p"; return; }
  done
}

write_conf() {
  cat >"$DATA_DIR/log4j2.xml" <<EOF
<Configuration status="WARN" shutdownHook="disable">
  <Appenders><Console name="out"><PatternLayout pattern="%d{ISO8601} [%t] %-5level %logger{1} - %msg%n"/></Console></Appenders>
  <Loggers><Root level="${LOG_LEVEL:-info}"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
EOF
  cat >"$DATA_DIR/standalone.conf" <<EOF
clusterName=standalone
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
brokerServicePort=$BROKER_PORT
webServicePort=$WEB_PORT

# One bookie. This file is the bookie's configuration too; lo + advertisedAddress bind it to 127.0.0.1.
listeningInterface=lo
allowLoopback=true
# Needed for --bookkeeper-port to be heeded: without it the first boot takes a random port (sic).
allowEphemeralPorts=true
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
journalSyncData=${JOURNAL_SYNC:-true}
journalMaxGroupWaitMSec=1
journalPreAllocSizeMB=16
journalMaxSizeMB=256
dbStorage_writeCacheMaxSizeMb=32
dbStorage_readAheadCacheMaxSizeMb=32
dbStorage_rocksDB_blockCacheSize=16777216
managedLedgerCacheSizeMB=64
# A tailing reader is woken at once (default 10 ms later).
managedLedgerNewEntriesCheckDelayInMillis=0
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
httpServerEnabled=false

# A log store: data stays until it is truncated, topics stay without clients, nothing expires or blocks.
defaultRetentionTimeInMinutes=-1
defaultRetentionSizeInMB=-1
brokerDeleteInactiveTopicsEnabled=false
allowAutoTopicCreationType=non-partitioned
ttlDurationDefaultInSeconds=0
backlogQuotaDefaultLimitBytes=-1
brokerDeduplicationEnabled=${DEDUP:-false}

# Small ledgers that may roll at once, so that tests see rollover and deletion.
managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerMaxEntriesPerLedger=${MAX_ENTRIES_PER_LEDGER:-50000}

# Off: not needed here, slower to boot.
loadBalancerEnabled=false
webSocketServiceEnabled=false
transactionCoordinatorEnabled=false
enablePackagesManagement=false
systemTopicEnabled=true
topicLevelPoliciesEnabled=true
numIOThreads=2
numOrderedExecutorThreads=2
numHttpServerThreads=8
numWorkerThreadsForNonPersistentTopic=1
${EXTRA_CONF:-}
EOF
}

archive() { echo "$BROKER_CACHE/classes-$("$JAVA" -version 2>&1 | sha256sum | cut -c1-12).jsa"; }

# A JVM that cannot make an archive leaves an empty file, so that it is not tried again.
warm() {
  install
  local jsa; jsa=$(archive); [ ! -e "$jsa" ] || return 0
  if ! (ARCHIVE_TO=$jsa.$$ start "$1" >/dev/null && end "$1" "${STOP_TIMEOUT:-60}") || [ ! -s "$jsa.$$" ]; then
    echo "pulsar.sh: no class archive made (boots will be slower)" >&2
    end "$1" 0
    : >"$jsa.$$"
  fi
  mv "$jsa.$$" "$jsa"
}

start() {
  local DATA_DIR=$1 pid
  mkdir -p "$DATA_DIR"; DATA_DIR=$(cd "$DATA_DIR" && pwd)
  pid=$(running "$DATA_DIR") && die "already running in $DATA_DIR (pid $pid)"
  install
  # Ports given > ports of the last run on this data > free ones. The bookie is known by its port: keep it.
  local b=${BROKER_PORT:-} w=${WEB_PORT:-} k=${BOOKIE_PORT:-}
  [ -f "$DATA_DIR/ports" ] && . "$DATA_DIR/ports"
  BROKER_PORT=${b:-${BROKER_PORT:-$(free_port)}}
  WEB_PORT=${w:-${WEB_PORT:-$(free_port "$BROKER_PORT")}}
  BOOKIE_PORT=${k:-${BOOKIE_PORT:-$(free_port "$BROKER_PORT" "$WEB_PORT")}}
  local url=pulsar://127.0.0.1:$BROKER_PORT admin=http://127.0.0.1:$WEB_PORT
  printf '%s\n' "BROKER_PORT=$BROKER_PORT" "WEB_PORT=$WEB_PORT" "BOOKIE_PORT=$BOOKIE_PORT" \
    >"$DATA_DIR/ports"
  printf '%s\n' "PULSAR_SERVICE_URL=$url" "PULSAR_ADMIN_URL=$admin" >"$DATA_DIR/env"
  write_conf
  local jsa cds; jsa=$(archive)
  if [ -n "${ARCHIVE_TO:-}" ]; then cds="-XX:ArchiveClassesAtExit=$ARCHIVE_TO"
  else cds=$([ -z "${NO_CDS:-}" ] && [ -s "$jsa" ] && echo "-XX:SharedArchiveFile=$jsa" || true); fi

  # cwd: the broker looks for plug-in folders below it. In a session of its own, so that a Ctrl-C at the
  # caller's terminal does not reach it.
  cd "$DATA_DIR"
  setsid "$JAVA" -Xms128m -Xmx"${HEAP:-1g}" -XX:MaxDirectMemorySize="${DIRECT:-512m}" \
    ${JAVA_OPTS--XX:TieredStopAtLevel=1 -XX:+UseSerialGC} $cds \
    --add-opens java.base/java.nio=ALL-UNNAMED \
    --add-opens java.base/jdk.internal.misc=ALL-UNNAMED \
    --add-opens java.base/sun.net=ALL-UNNAMED \
    --add-opens java.base/jdk.internal.platform=ALL-UNNAMED \
    --add-opens java.management/sun.management=ALL-UNNAMED \
    --add-opens jdk.management/com.sun.management.internal=ALL-UNNAMED \
    -Dio.netty.tryReflectionSetAccessible=true -Djava.net.preferIPv4Stack=true \
    -Dlog4j2.configurationFile="$DATA_DIR/log4j2.xml" \
    -cp "$BROKER_CACHE/lib/*" org.apache.pulsar.PulsarStandaloneStarter \
    -nfw -nss -a 127.0.0.1 -c "$DATA_DIR/standalone.conf" \
    --metadata-dir "$DATA_DIR/metadata" --bookkeeper-dir "$DATA_DIR/bookkeeper" \
    --bookkeeper-port "$BOOKIE_PORT" \
    >>"$DATA_DIR/log" 2>&1 </dev/null 3>&- 4>&- 9>&- &
  pid=$!
  echo "$pid" >"$DATA_DIR/pid"
  disown
  local deadline=$((SECONDS + ${START_TIMEOUT:-120}))
  while :; do
    exists "$pid" || { tail -n 40 "$DATA_DIR/log" >&2; die "the broker exited, see $DATA_DIR/log"; }
    curl -fsS -m 10 "$admin/admin/v2/brokers/health" 2>/dev/null | grep -q ok &&
      curl -fsS -m 5 "$admin/admin/v2/namespaces/public" 2>/dev/null | grep -q public/default && break
    if [ "$SECONDS" -ge "$deadline" ]; then
      end "$DATA_DIR" 0
      tail -n 40 "$DATA_DIR/log" >&2; die "not usable within ${START_TIMEOUT:-120}s, see $DATA_DIR/log"
    fi
    sleep 0.1
  done
  cat "$DATA_DIR/env"
}

# True if pid $1 exists and is no zombie (a container's pid 1 may reap late or never); a dead first
# thread whose other threads still hold the ports counts as alive.
exists() {
  local st
  st=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p; s/^Threads:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null | tr -d '\n') || true
  case $st in '' | Z1) return 1 ;; esac
}

# Waits up to $2 seconds for pid $1 to be gone.
gone() {
  local deadline=$((SECONDS + $2))
  while exists "$1"; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.05
  done
}

# Sends SIGTERM ($2 seconds to obey), then SIGKILL; with 0 seconds SIGKILL at once.
end() {
  local d pid; d=$(cd "$1" 2>/dev/null && pwd) || die "no such folder: $1"
  pid=$(running "$d") || return 0
  if [ "$2" -gt 0 ]; then
    kill -TERM "$pid" 2>/dev/null || true
    gone "$pid" "$2" && return 0
    echo "pulsar.sh: pid $pid ignores SIGTERM, killing it" >&2
  fi
  kill -KILL "$pid" 2>/dev/null || true
  gone "$pid" 10 || die "pid $pid did not die"
}

sub=${1:-}
case $sub in
  install | check) "$sub" ;;
  warm | start | stop | kill | pid)
    dir=${2:-${DATA_DIR:-}}
    [ -n "$dir" ] || die "$sub needs a folder: as argument or in DATA_DIR"
    case $sub in
      warm | start) "$sub" "$dir" ;;
      stop) end "$dir" "${STOP_TIMEOUT:-20}" ;;
      kill) end "$dir" 0 ;;
      pid) running "$(cd "$dir" && pwd)" ;;
    esac ;;
  *) awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
