#!/usr/bin/env bash
# What --help says, the manual pages, README.md with the pages behind it, and the shell's completion: accounts of the same
# options, which must not drift apart. --help is the one that the programs themselves keep true; completion reads it, and the
# pages of the commands are made of it. And lists of the sources that tests must cover.
#
# usage: tests/system/test_documentation.sh BUILD_DIRECTORY
set -o pipefail

build=$(realpath "$1") failed=0
bin=$build/bin
cd "$(dirname "$0")/../.." || exit 1
export PATH=$bin:$PATH
XDG_RUNTIME_DIR=$(mktemp -d)
export XDG_RUNTIME_DIR
trap 'rm -rf "$XDG_RUNTIME_DIR"' EXIT
# Completion offers the names of live daemons. There are none in XDG_RUNTIME_DIR; those of other tests come and go.
find() { [ "$1" = "/tmp/eps-$UID" ] || command find "$@"; }
. tools/completion/eps.bash
wrong() {
    echo "test_documentation: $*" >&2
    failed=1
}
# same WHAT LIST NAME OTHER NAME: lists of lines, in any order
same() {
    local difference
    [ -n "$2" ] || wrong "$1: $3 lists nothing"
    difference=$(diff <(sort -u <<<"$2") <(sort -u <<<"$4")) || wrong "$1: $3 (<) is not $5 (>): $difference"
}

# Of --help: "--name" or "--name VALUE" of every line that begins with one.
help_options() { "$bin/$1" "${@:2}" --help all | sed -nE 's/^  (--[^ ]+( [^ ]+)?).*/\1/p'; }
# The same of ".It Fl -name Ar VALUE".
page_options() { sed -nE 's/^\.It Fl (-[^ ]+) Op Ar ([^ ]+).*/-\1 [\2]/p; t; s/^\.It Fl (-[^ ]+)( Ar( [^ ]+))?.*/-\1\3/p'; }
# What bash offers for the last of these words, a line each; or after these words.
offered_for() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _eps 2>/dev/null
    printf '%s\n' "${COMPREPLY[@]}"
}
offered() { offered_for "$@" ""; }
# Where an option takes one of a few words, those are offered; a placeholder, like FILE, is none. Behind an option without
# a value, the same is offered as before it; behind one that takes a file, files are.
check_choices() {
    local option values value
    while read -r option values; do
        [ -n "$values" ] || [ "$(offered "${@:2}" "$option")" = "$(offered "${@:2}")" ] ||
            wrong "${*:2} $option: a value is offered"
        [ "$values" != FILE ] || grep -qx README.md <<<"$(offered "${@:2}" "$option")" ||
            wrong "${*:2} $option: no files are offered"
        [[ $values == *"|"* ]] || continue
        for value in ${values//|/ }; do
            [[ ! $value =~ ^[a-z0-9]+$ ]] || grep -qx -- "$value" <<<"$(offered "${@:2}" "$option")" ||
                wrong "${*:2} $option: '$value' is not offered"
        done
    done <<<"$1"
}

commands=$("$bin/eps" --help | sed -nE 's/^  ([a-z]+) .*/\1/p')
same eps "$commands" --help "$(sed -n 's/^\.It Xr eps-\([a-z]*\) 1$/\1/p' tools/man/eps.1)" tools/man/eps.1
same eps "$commands" --help "$(cd tools/man && printf '%s\n' eps-*.1.in | sed 's/^eps-//; s/\.1\.in$//')" tools/man
same eps "$commands"$'\nhelp\nversion\n--help\n--version' --help "$(offered eps)" "bash's completion"
for command in $commands; do
    said=$(help_options eps "$command")
    page=$build/man/eps-$command.1
    written=$(page_options <"$page")
    same "eps $command" "$said" --help "${written:+$written$'\n'}--help" "$page" # --help is said once, in eps.1
    same "eps $command" "$(cut -d' ' -f1 <<<"$said")" --help "$(offered_for eps "$command" --)" "bash's completion"
    check_choices "$said" eps "$command"
done
for program in epsd eps-worker; do
    said=$(help_options $program)
    same $program "$said" --help "$(page_options <tools/man/$program.1)" tools/man/$program.1
    same $program "$(cut -d' ' -f1 <<<"$said")" --help "$(offered_for $program --)" "bash's completion"
    check_choices "$said" $program
done

# What takes a size says what a size is, and nothing else does.
sizes='BYTES: as in 1.5GiB, 512M (K, M, G, T: powers of 1024), 512MB (of 1000), 65536.'
for line in epsd eps-worker $(sed 's/^/eps,/' <<<"$commands"); do
    IFS=, read -ra words <<<"$line"
    help=$("$bin/${words[0]}" "${words[@]:1}" --help all)
    case $help in
    *" BYTES"*)
        grep -qxF "$sizes" <<<"$help" || wrong "${words[*]} --help does not say what BYTES are"
        [ "${words[0]}" != eps ] || grep -qxF "$sizes" "$build/man/eps-${words[1]}.1" ||
            wrong "eps-${words[1]}(1) does not say what BYTES are"
        ;;
    *BYTES:*) wrong "${words[*]} --help explains BYTES, but takes none" ;;
    esac
done
for name in eps epsd eps-worker; do
    grep -q '^K, M, G and T are powers of 1024 .*; kB, MB, GB and TB are powers of 1000\.$' "tools/man/$name.1" ||
        wrong "tools/man/$name.1 does not say what BYTES are"
done

presets=$("$bin/eps" plan --model no-such-model 2>&1 | sed 's/.* presets: //; s/;.*//; s/, /\n/g')
for preset in $presets; do
    for command in train plan; do
        grep -qx "$preset" <<<"$(offered eps $command --model)" || wrong "eps $command --model: '$preset' is not offered"
    done
    grep -q "^\.It $preset Ta " "$build/man/eps-train.1" || wrong "eps-train(1) does not list $preset"
done

# Each operation of a device is run on every backend and compared with the reference.
operations=$(sed -nE 's/^    X\(([a-z0-9_]+), device_.*/\1/p' proto/operation/calls.h)
[ -n "$operations" ] || wrong "proto/operation/calls.h lists no operation"
for operation in $operations; do
    grep -qE "CALL_$operation\>|ops->$operation\(" tests/device/test_*.c ||
        wrong "proto/operation/calls.h: no test in tests/device/ runs $operation"
done

# README.md and the pages behind it.
said=$(python3 tests/system/check_pages.py "$bin") || wrong "$said"

# In zsh and fish. offered_by SHELL WORDS... WORD: what is offered for the last word, a line each; in
# zsh without its own completion system, whose functions print instead.
offered_by() {
    case $1 in
    zsh)
        zsh -f -c '_describe() { local name=${@[-1]}; print -rl -- ${${(P)name}%%:*} }
            compadd() { shift; print -rl -- "$@" }
            _files() { print -rl -- *(N) }
            words=("$@") CURRENT=$#
            source tools/completion/_eps' zsh "${@:2}"
        ;;
    fish) fish --no-config -c 'source tools/completion/eps.fish; complete -C "$argv"' "${@:2}" | cut -f1 ;;
    esac | sort -u
}
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
mkdir -p "$run/eps/lab" && touch "$run/eps/lab/listener"
for line in "status" "train --connect" "eval --model x --connect" "drain 3"; do
    grep -qx lab <<<"$(XDG_RUNTIME_DIR=$run offered eps $line)" || wrong "bash: no daemons for $line"
done
grep -qx gpt_neox <<<"$(offered eps models)" || wrong "bash: no families for models"
for shell in zsh fish; do
    command -v $shell >/dev/null || continue
    same "eps in $shell" "$commands" --help "$(offered_by $shell eps "")" "$shell's completion"
    for line in "epsd" "eps-worker" $(sed 's/^/eps,/' <<<"$commands"); do
        IFS=, read -ra words <<<"$line"
        said=$(help_options "${words[@]}" | cut -d' ' -f1)
        same "${words[*]} in $shell" "$said" --help "$(offered_by $shell "${words[@]}" -- | grep '^--')" "$shell's completion"
    done
    same "presets in $shell" "$presets" eps "$(offered_by $shell eps plan --model "" | grep -E '^(text|byte)-|^gpt2|^wrn-|^resnet-')" "$shell's completion"
    same "choices in $shell" $'fp32\nbf16\nfp16' --help "$(offered_by $shell eps train --batch 4 --precision "")" "$shell's completion"
    grep -q '^README.md' <<<"$(offered_by $shell eps train --data LICENCE "R")" || wrong "$shell: no files for --data"
    grep -qx -- --seed <<<"$(offered_by $shell eps train --deterministic "--s")" || wrong "$shell: nothing after a flag"
    grep -qx -- --seed <<<"$(offered_by $shell eps train --precision bf16 "--s")" || wrong "$shell: nothing after a value"
    grep -qx gpt_neox <<<"$(offered_by $shell eps models "")" || wrong "$shell: no families for models"
    for line in "status" "train --connect"; do
        grep -qx lab <<<"$(XDG_RUNTIME_DIR=$run offered_by $shell eps $line "")" || wrong "$shell: no daemons for $line"
    done
done

# In groups, a blank line before each and before --help.
help=$("$bin/eps" train --help all)
[[ $help == *$'\n\nModel and data:\n  --model '*$'\n\nMachine:\n  --'*$'\n\n  --help '* && $help != *$'\n\n\n'* ]] ||
    wrong "eps train --help is not in groups"

# The guide's list of families is the program's.
[[ $(<client/README.md) == *$'```text\n'"$("$bin/eps" models)"$'\n```'* ]] || wrong "client/README.md does not have what eps models prints"

# groff's own complaints: a macro that is not there, a list that does not end.
if command -v groff >/dev/null; then
    for page in tools/man/*.1 "$build"/man/*.1; do
        said=$(groff -mdoc -Tutf8 -ww -z "$page" 2>&1)
        [ -z "$said" ] || wrong "$page: $said"
    done
fi

# Each fault of the lists can still be planted. (clang-format brings Python.)
said=$(python3 tests/system/world/plant.py --check 2>&1) || wrong "$said"
if git rev-parse --git-dir >/dev/null 2>&1; then # mutation.py asks git for the sources
    said=$(python3 tests/mutation/mutation.py check tests/mutation/faults.json 2>&1) || wrong "$said"
fi
exit $failed
