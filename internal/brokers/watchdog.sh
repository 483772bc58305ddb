#!/usr/bin/env bash
# watchdog.sh RECIPE ROOM LINGER_SECONDS
#
# Ends the brokers of ROOM when nobody uses them any more, however the users ended. A user holds a shared
# lock on ROOM/users for as long as it lives, which the kernel drops even after a SIGKILL; this script
# waits for the exclusive one. Then it kills each broker in ROOM/nodes (RECIPE checks the pid by its
# command line first) and removes ROOM.
#
# The brokers stay while a process named in ROOM/runs ("PID START_TIME" of the `go test` that ran a user)
# is alive, and LINGER_SECONDS after ROOM/users was last touched.
set -uo pipefail
recipe=$1 room=$2 linger=$3

exec 8>>"$room/watchdog" && flock -w 10 8 || exit 0   # one watchdog for each room
exec 9<"$room/users" || exit 0

# The words of /proc/PID/stat behind the command's name, which may itself hold spaces.
start_time() { local s; s=$(cat "/proc/$1/stat" 2>/dev/null) && set -- ${s##*)} && echo "${20}"; }

wanted() {
  local f pid born
  for f in "$room"/runs/*; do
    [ -e "$f" ] || continue
    read -r pid born <"$f" && [ "$(start_time "$pid")" = "$born" ] && return 0
    rm -f "$f"
  done
  [ $(($(date +%s) - $(stat -c %Y "$room/users" 2>/dev/null || echo 0))) -lt "$linger" ]
}

while flock -x 9; do
  [ -e "$room/users" ] || exit 0                      # the last user has cleaned up
  wanted || break
  flock -u 9
  sleep 0.5 || break
done
for node in "$room"/nodes/*/; do
  [ -d "$node" ] && bash "$recipe" kill "${node%/}" 8>&- 9>&-
done
# Renamed first: who comes now makes a new room, and finds that the lock it waits for is of no room.
mv "$room" "$room.ended.$$" && rm -rf "$room.ended.$$"
