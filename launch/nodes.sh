#!/usr/bin/env bash
# One node of a run over several:  call it on every node, with the same arguments but the node's number,
# from 0.
#   NODE=0 launch/nodes.sh NODES SITES_PER_NODE ADDRESS_OF_NODE_0 [--config FILE] [key.sub=value ...]
# PORT (29500) is the TCP port of node 0 that all nodes must reach; GLOO_SOCKET_IFNAME names the
# network interface to the other nodes where there is more than one.
set -euo pipefail

if [[ $# -lt 3 || ! $1 =~ ^[1-9][0-9]*$ || ! $2 =~ ^[1-9][0-9]*$ ||
      ! ${NODE:-} =~ ^(0|[1-9][0-9]*)$ || $NODE -ge $1 ]]; then
    echo "usage: NODE=N $0 NODES SITES_PER_NODE ADDRESS_OF_NODE_0 [--config FILE] [key.sub=value ...]" >&2
    exit 2
fi
nodes=$1 per_node=$2 address=$3
shift 3
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
PATH="$PATH:$(cd "$(dirname "$0")/.." && pwd)/.venv/bin"  # what `make install` has put there
exec torchrun --nnodes="$nodes" --node-rank="$NODE" --nproc_per_node="$per_node" \
    --rdzv-backend=static --master-addr="$address" --master-port="${PORT:-29500}" \
    -m powertrip.train "$@"
