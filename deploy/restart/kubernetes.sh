#!/bin/sh
# Delete the pod that has an address, and wait until its StatefulSet made it anew: what `tandem rolling-restart` is told
# to call, from a pod or machine that reaches the pods.
#
#   tandem rolling-restart --with 'deploy/restart/kubernetes.sh {host}' -n namesrv-0.namesrv:9876
#
# NAMESPACE, default tandemmq. `kubectl rollout restart statefulset/broker-a` does without us, in the order of the pods.
set -eu

address=${1:?which address? One that clusterList shows}
namespace=${NAMESPACE:-tandemmq}
pod=$(kubectl -n "$namespace" get pods --field-selector "status.podIP=$address" -o name)
if [ -z "$pod" ]; then
    echo "no pod of namespace $namespace has the address $address" >&2
    exit 1
fi
kubectl -n "$namespace" delete "$pod" --wait
until kubectl -n "$namespace" get "$pod" >/dev/null 2>&1; do sleep 1; done
