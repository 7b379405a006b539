#!/bin/sh
# Restart the container that has an address of a composed cluster: what `tandem rolling-restart` is told to call.
#
#   tandem rolling-restart --name-servers --with 'deploy/restart/compose.sh {host}' \
#       -n '172.29.88.2:9876;172.29.88.3:9876'
set -eu

address=${1:?which address? One that clusterList shows}
for container in $(docker ps -q --filter label=com.docker.compose.project); do
    format='{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}'
    case " $(docker inspect --format "$format" "$container") " in
        *" $address "*) exec docker restart --time 60 "$container" ;;
    esac
done
echo "no running container of a compose project has the address $address" >&2
exit 1
