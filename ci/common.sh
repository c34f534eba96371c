# Shared by the scripts of ci/; sourced, never run. The caller's header comment is its --help.
set -euo pipefail
umask 022
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
jobs=$(nproc)

# Prints the caller's header comment, without the first line.
help() {
  sed -n '2,/^[^#]/ { /^#/ s/^# \{0,1\}//p; }' "$0"
}

fail() {
  printf '%s: %s\n' "ci/$(basename "$0")" "$1" >&2
  exit "${2:-2}"
}

# quietly WHAT LOG COMMAND...: one line while it runs and how long it took; its output only when it
# fails. A long build shows ninja's own progress where there is a terminal.
quietly() {
  local what=$1 log=$2 started=$SECONDS status=0
  shift 2
  mkdir -p "$(dirname "$log")"
  printf '%s ... ' "$what" >&2
  "$@" >"$log" 2>&1 || status=$?
  if ((status == 0)); then
    printf '%s s\n' $((SECONDS - started)) >&2
  else
    printf 'failed after %s s (all of it in %s)\n' $((SECONDS - started)) "$log" >&2
    # What ninja says went wrong, else the end of it.
    { sed -n '/^FAILED: /,$p' "$log" | grep . || tail -n 40 "$log"; } | head -n 60 >&2
  fi
  return "$status"
}

setup() {
  ci/setup
  PATH="$root/build/venv/bin:$PATH"
}

# build_preset NAME [TARGET...]: configures and builds a preset of CMakePresets.json.
build_preset() {
  local preset=$1 directory=build
  shift
  [[ $preset == dev ]] || directory=build/$preset
  local log=$directory/build.log
  quietly "Configuring ($preset)" "$directory/configure.log" cmake --preset "$preset" || return 3
  quietly "Building ($preset)" "$log" \
    cmake --build --preset "$preset" -j "$jobs" ${1:+--target "$@"} || return 3
}

case ${1:-} in
  -h | --help)
    help
    exit 0
    ;;
esac
