#!/bin/sh
# light_first.sh COMPILER ARGUMENT...: compiles with the headers of light/ before torch's own, which takes a third of the
# time, and before them what is precompiled; what does not compile so is compiled as its build asks, and only then is
# said what is wrong with it.
compiler=$1
shift
for argument; do
  if [ "$argument" = -c ]; then
    if said=$("$compiler" ${EMULATED_GPU_PRECOMPILED:+-I "$EMULATED_GPU_PRECOMPILED"} -I "${0%/*}/light" "$@" 2>&1); then
      [ -z "$said" ] || printf '%s\n' "$said" >&2
      exit 0
    fi
    break
  fi
done
exec "$compiler" "$@"
