#!/usr/bin/env bash
# Instructions that logging costs for each object: the paper's workloads with every mechanism and method, counted by
# callgrind, less those of the same run without a log. The store copies bytes in memory, so no file system is counted.
#
# lab/instructions.sh [OBJECTS_PER_FLUSH]  writes CSV to standard output.
set -euo pipefail
cd "$(dirname "$0")/.."

per_flush=${1:-8}
command -v valgrind >/dev/null || { echo "valgrind is missing: apt-get install valgrind" >&2; exit 1; }
cargo build --locked --release -p haul-objectlog --example instructions >&2
program=${CARGO_TARGET_DIR:-target}/release/examples/instructions

count() { # WORKLOAD MECHANISM METHOD: instructions, objects
    local said
    said=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$@" "$per_flush" 2>&1) || {
        echo "$said" >&2
        return 1
    }
    awk '/ Collected : /{instructions = $NF} / objects, /{objects = $1} END{print instructions, objects}' <<<"$said"
}

echo workload,mechanism,method,objects,instructions_per_object
for workload in big small; do
    read -r without objects < <(count "$workload" none bit64)
    for mechanism in file transaction universal; do
        for method in char int enc binary bit8 bit64; do
            read -r with objects < <(count "$workload" "$mechanism" "$method")
            echo "$workload,$mechanism,$method,$objects,$(((with - without) / objects))"
        done
    done
done
