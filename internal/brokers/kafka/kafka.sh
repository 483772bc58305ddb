#!/usr/bin/env bash
# A real single-node Kafka broker (KRaft, combined mode) on loopback, for tests. Linux, JDK or JRE 17+.
#
#   kafka.sh install          fetch the jars into $BROKER_CACHE (needs mvn; nothing to do when they are there)
#   kafka.sh check            0: jars and class archive are cached, 3: jars only, 4: no jars
#   kafka.sh warm  DATA_DIR   boot once in a new DATA_DIR and keep a class archive: later boots take half the time
#   kafka.sh start DATA_DIR   install, format DATA_DIR if new, boot, wait; prints "127.0.0.1:PORT"
#   kafka.sh stop  DATA_DIR   SIGTERM, wait, then SIGKILL
#   kafka.sh kill  DATA_DIR   SIGKILL at once (crash tests; `start` again recovers)
#   kafka.sh pid   DATA_DIR   prints the pid if the broker runs, else fails
#
# DATA_DIR may also come from the environment. Other settings, all optional:
#   BROKER_CACHE       jar cache (default ${XDG_CACHE_HOME:-~/.cache}/wal-brokers/kafka)
#   PORT               client port (default: the one DATA_DIR had last, else a free one)
#   CONTROLLER_PORT    controller port (same default)
#   MAX_MESSAGE_BYTES  message.max.bytes, the largest record batch (default 1048588)
#   SESSION_MS         broker.session.timeout.ms (default 1000): what a start after `kill` waits for
#   HEAP               JVM -Xmx (default 512m)
#   KAFKA_PROPS        extra server.properties lines, newline separated; they win
#   CLUSTER_ID         the cluster a new DATA_DIR is formatted for (default: a random one)
#   JAVA               java command (default $JAVA_HOME/bin/java, else java)
#   JAVA_OPTS_EXTRA    extra JVM options, e.g. -XX:TieredStopAtLevel=4 for benchmarks (the broker runs
#                      with the quick compiler only: boots faster, steady state is slower)
#   START_TIMEOUT      seconds to wait for the broker to answer (default 60)
#   STOP_TIMEOUT       seconds between SIGTERM and SIGKILL (default 20)
#   NO_CDS             set: `start` uses no class archive
# Files in DATA_DIR: data/ (log.dirs), server.properties, broker.log, broker.pid.
# The caller may leave locks on descriptors 3 and 4: this script keeps them open, the broker does not get them.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
JAVA=${JAVA:-${JAVA_HOME:+$JAVA_HOME/bin/}java}
cache=${BROKER_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME or BROKER_CACHE must be set}/.cache}/wal-brokers/kafka}

die() { echo "kafka.sh: $*" >&2; exit 1; }
need() { command -v "$1" >/dev/null 2>&1 || die "no '$1' on PATH: $2"; }

# One folder per pom.xml, so that a version change installs anew.
home() { echo "$cache/$(cksum <"$here/pom.xml" | cut -d' ' -f1)"; }

classpath() { local IFS=:; local jars=("$1"/lib/*.jar); echo "${jars[*]}"; }

cmd_check() {
  local h; h=$(home)
  [ -d "$h/lib" ] || exit 4
  [ -e "$h/boot.jsa" ] || exit 3
}

cmd_install() {
  local h; h=$(home)
  [ ! -d "$h/lib" ] || return 0
  need mvn "install Maven 3.8 or newer (only 'install' needs it)"
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock -w "${INSTALL_TIMEOUT:-900}" 9 || die "another install holds $cache/lock"
  if [ ! -d "$h/lib" ]; then
    local tmp; tmp=$(mktemp -d "$cache/.tmp.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$tmp'" EXIT
    timeout "${INSTALL_TIMEOUT:-900}" mvn -B -q -ntp -f "$here/pom.xml" dependency:copy-dependencies \
      -DincludeScope=runtime -DoutputDirectory="$tmp/lib" >"$tmp/mvn.log" 2>&1 ||
      { cat "$tmp/mvn.log" >&2; die "mvn could not fetch the jars"; }
    ls "$tmp"/lib/kafka_*.jar >/dev/null || die "mvn ran but copied no broker jar"
    # One rename: a half-copied folder is never taken for a whole one.
    mkdir -p "$h"
    mv -T "$tmp/lib" "$h/lib" 2>/dev/null || [ -d "$h/lib" ] || die "cannot move jars to $h"
    rm -rf "$tmp"; trap - EXIT
  fi
  exec 9>&-
}

# Class-data-sharing archive of a real boot. A JVM that differs from the one that wrote it ignores it; one
# that cannot make an archive leaves an empty file, so that it is not tried again.
cmd_warm() {
  cmd_install
  local d=$1 h; h=$(home)
  [ ! -e "$h/boot.jsa" ] || return 0
  mkdir -p "$d"; d=$(cd "$d" && pwd)
  if (NO_CDS=1 JAVA_OPTS_EXTRA="-XX:ArchiveClassesAtExit=$d/boot.jsa" cmd_start "$d" >/dev/null &&
      end "$d" "${STOP_TIMEOUT:-60}") && [ -s "$d/boot.jsa" ]; then
    mv "$d/boot.jsa" "$h/boot.jsa.$$"
  else
    echo "kafka.sh: no class archive made (boots will be slower)" >&2
    end "$d" 0
    : >"$h/boot.jsa.$$"
  fi
  mv "$h/boot.jsa.$$" "$h/boot.jsa"
}

# True if something accepts connections on 127.0.0.1:$1.
listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# A free port below Linux's ephemeral range, so that no outgoing connection takes it meanwhile.
free_port() {
  local p
  for _ in $(seq 100); do
    p=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
    [ "$p" != "${1:-}" ] && ! listening "$p" && { echo "$p"; return; }
  done
  die "found no free port"
}

# A killed process may hold its ports for a moment.
wait_free() {
  local deadline=$((SECONDS + 5))
  while listening "$1"; do
    [ "$SECONDS" -lt "$deadline" ] || die "port $1 is taken"
    sleep 0.05
  done
}

# Sends ApiVersions v0 and waits for the first bytes of the answer.
answers() {
  (
    exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
    printf '\0\0\0\012\0\022\0\0\0\0\0\1\377\377' >&3
    LC_ALL=C read -r -t 1 -d '' -n 1 -u 3 _
  ) 2>/dev/null
}

# Prints the pid in DATA_DIR/broker.pid if that process is this broker (and not a reused pid).
running() {
  local pid
  pid=$(cat "$1/broker.pid" 2>/dev/null) && [ -n "$pid" ] && [ -r "/proc/$pid/cmdline" ] || return 1
  case $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") in *"$1/server.properties"*) echo "$pid" ;; *) return 1 ;; esac
}

prop() { sed -n "s/^# $2=//p" "$1/server.properties" 2>/dev/null || true; }

cmd_start() {
  need "$JAVA" "install a JDK or JRE, 17 or newer"
  local d=$1 h pid; h=$(home)
  cmd_install
  mkdir -p "$d"; d=$(cd "$d" && pwd)
  pid=$(running "$d") && die "already running in $d (pid $pid)"

  local port cport session=${SESSION_MS:-1000}
  port=${PORT:-$(prop "$d" port)}; port=${port:-$(free_port)}
  cport=${CONTROLLER_PORT:-$(prop "$d" controller)}; cport=${cport:-$(free_port "$port")}
  wait_free "$port"
  wait_free "$cport"

  cat >"$d/server.properties" <<PROPS
# port=$port
# controller=$cport
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$cport
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$cport
advertised.listeners=PLAINTEXT://127.0.0.1:$port
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$d/data
auto.create.topics.enable=false
num.partitions=1
default.replication.factor=1
min.insync.replicas=1
message.max.bytes=${MAX_MESSAGE_BYTES:-1048588}
# One replica, one partition for every internal topic: made at once on first use.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
# Small machine: few threads, small cleaner buffer (the default takes 128 MiB of heap).
num.network.threads=2
num.io.threads=4
background.threads=2
log.cleaner.dedupe.buffer.size=8388608
# After a SIGKILL the controller refuses the restarted broker until its old session has expired.
broker.session.timeout.ms=$session
broker.heartbeat.interval.ms=$((session / 5))
${KAFKA_PROPS:-}
PROPS

  local cp jvm
  cp=$(classpath "$h")
  jvm=(-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto)
  [ -n "${NO_CDS:-}" ] || [ ! -s "$h/boot.jsa" ] || jvm+=("-XX:SharedArchiveFile=$h/boot.jsa")
  jvm+=(-Dorg.slf4j.simpleLogger.showDateTime=true "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"
    -Dorg.slf4j.simpleLogger.defaultLogLevel=info
    # Not the dumps of all settings at every boot.
    -Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn)

  if [ ! -f "$d/data/meta.properties" ]; then
    # 16 random bytes in URL-safe base64, as StorageTool's random-uuid prints; no "-" in front, it would
    # read as an option.
    local id; id=$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | cut -c1-22)
    "$JAVA" -Xmx64m "${jvm[@]}" -cp "$cp" kafka.tools.StorageTool format \
      --config "$d/server.properties" --cluster-id "${CLUSTER_ID:-A${id#?}}" >"$d/format.log" 2>&1 ||
      { cat "$d/format.log" >&2; die "cannot format $d"; }
  fi

  # In a session of its own, so that a Ctrl-C at the caller's terminal does not reach it; no descriptor
  # of the caller's stays open, so $(kafka.sh start ...) returns.
  # shellcheck disable=SC2086
  setsid "$JAVA" "-Xmx${HEAP:-512m}" "${jvm[@]}" ${JAVA_OPTS_EXTRA:-} -cp "$cp" kafka.Kafka \
    "$d/server.properties" </dev/null >>"$d/broker.log" 2>&1 3>&- 4>&- 9>&- &
  pid=$!
  echo "$pid" >"$d/broker.pid"
  disown

  local deadline=$((SECONDS + ${START_TIMEOUT:-60}))
  until answers "$port"; do
    alive "$pid" || { tail -n 40 "$d/broker.log" >&2; die "the broker exited, see $d/broker.log"; }
    if [ "$SECONDS" -ge "$deadline" ]; then
      kill -9 "$pid" 2>/dev/null || true
      tail -n 40 "$d/broker.log" >&2; die "no answer within ${START_TIMEOUT:-60}s, see $d/broker.log"
    fi
    sleep 0.05
  done
  echo "127.0.0.1:$port"
}

# True if pid $1 exists and is no zombie (a container's pid 1 may reap late or never); a dead first
# thread whose other threads still hold the ports counts as alive.
alive() {
  local st
  st=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p; s/^Threads:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null | tr -d '\n') || true
  case $st in '' | Z1) return 1 ;; esac
}

# Waits up to $2 seconds for pid $1 to be gone.
gone() {
  local deadline=$((SECONDS + $2))
  while alive "$1"; do
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
    echo "kafka.sh: pid $pid ignores SIGTERM, killing it" >&2
  fi
  kill -KILL "$pid" 2>/dev/null || true
  gone "$pid" 10 || die "pid $pid did not die"
}

usage() { sed -n '2,/^set -/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2; }

sub=${1:-}
case $sub in
  install) cmd_install ;;
  check) cmd_check ;;
  warm | start | stop | kill | pid)
    dir=${2:-${DATA_DIR:-}}
    [ -n "$dir" ] || die "$sub needs a folder: as argument or in DATA_DIR"
    case $sub in
      warm) cmd_warm "$dir" ;;
      start) cmd_start "$dir" ;;
      stop) end "$dir" "${STOP_TIMEOUT:-20}" ;;
      kill) end "$dir" 0 ;;
      pid) running "$(cd "$dir" && pwd)" ;;
    esac ;;
  *) usage ;;
esac
