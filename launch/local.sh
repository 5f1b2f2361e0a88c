#!/usr/bin/env bash
# All sites of a scenario on this machine:  launch/local.sh SITES [--config FILE] [key.sub=value ...]
set -euo pipefail

if [[ $# -lt 1 || ! $1 =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: $0 SITES [--config FILE] [--json] [key.sub=value ...]" >&2
    exit 2
fi
sites=$1
shift
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
PATH="$PATH:$(cd "$(dirname "$0")/.." && pwd)/.venv/bin"  # what `make install` has put there
exec torchrun --standalone --nproc_per_node="$sites" -m powertrip.train "$@"
