#!/usr/bin/env bash
# record.sh FILE...: writes the findings of these files, each from one call of tools/gpu_check.sh, into $record as a dated
# entry. A line of the unverified list that passed moves to the verified list; a verified line that failed moves back. If
# calls disagree, the worst verdict counts; a claim that could not be tested has no vote.
# shellcheck disable=SC2154 # record is set by tools/gpu_check.sh
set -euo pipefail

fail() {
    echo "gpu_check.sh: $*" >&2
    exit 1
}
value() { # FILE NAME: the text of a fact of the call
    awk -F '|' -v name="$2" '$1 == "call" && $2 == name { text = $4 } END { print text }' "$1"
}

[ -f "$record" ] || fail "$record is not there"
for file in "$@"; do
    [ -s "$file" ] || fail "$file is empty, or not there"
    [ -z "$(value "$file" simulated)" ] || fail "$file comes from a simulator: nothing to record"
    for what in gpu commit; do
        [ -n "$(value "$file" $what)" ] || fail "$file does not say which GPU and commit it is of"
        [ "$(value "$file" $what)" = "$(value "$1" $what)" ] ||
            fail "$file is of $what $(value "$file" $what), $1 of $(value "$1" $what): record them one by one"
    done
done
gpu=$(value "$1" gpu) commit=$(value "$1" commit)
[ "$commit" != unknown ] || fail "$1 is of an unknown commit: nothing to record"
commit=${commit/%+/ and changes to it}

new=$(mktemp) results=$(mktemp)
trap 'rm -f "$new" "$results"' EXIT
awk 1 "$@" >"$results" # each line ended
awk -F '|' -v date="$(date -u +%Y-%m-%d)" -v gpu="${gpu%%,*}" -v commit="$commit" -v results="$results" '
    function name_of(line) { return match(line, /^- `[a-z0-9._-]+`/) ? substr(line, 4, RLENGTH - 4) : "" }
    function plain(line) { sub(/ \([0-9-]+, [^()]*\)$/, "", line); return line }
    function list(lines, n,    i) {
        for (i = 1; i <= n; i++) print lines[i]
        print n ? "" : "None.\n"
    }
    BEGIN {
        rank["missing"] = 1; rank["passed"] = 2; rank["short"] = 3; rank["failed"] = 4
        while ((getline line < results) > 0) {
            split(line, f, "|")
            if (f[1] == "call" || (f[2] in verdict && rank[f[3]] < rank[verdict[f[2]]])) continue
            verdict[f[2]] = f[3]
            text[f[2]] = substr(line, length(f[1] f[2] f[3]) + 4)
            if (!(f[2] in order)) { order[f[2]] = ++n_found; names[n_found] = f[2] }
        }
    }
    /^## / { section = $0 }
    { line = $0 }
    section == "## Unverified" && name_of(line) != "" {
        if (verdict[name_of(line)] == "passed") known[++n_known] = line " (" date ", " gpu ")"
        else open_[++n_open] = line
        next
    }
    section == "## Verified" && name_of(line) != "" {
        v = verdict[name_of(line)]
        if (v == "failed" || v == "short") open_[++n_open] = plain(line)
        else known[++n_known] = v == "passed" ? plain(line) " (" date ", " gpu ")" : line
        next
    }
    section == "" { head[++n_head] = line }
    section == "## Entries" && line != section && line != "None." { entries[++n_entries] = line }
    END {
        for (i = 1; i <= n_head; i++) print head[i]
        print "## Unverified\n"
        list(open_, n_open)
        print "## Verified\n"
        list(known, n_known)
        print "## Entries\n"
        print "### " date ": " gpu "\n"
        for (i = 1; i <= n_found; i++) if (verdict[names[i]] == "fact") print "- " names[i] ": " text[names[i]]
        print "- commit: " commit
        print "\n| what | | found |\n|---|---|---|"
        for (i = 1; i <= n_found; i++) if (verdict[names[i]] != "fact") {
            gsub(/\|/, "\\|", text[names[i]])
            print "| " names[i] " | " verdict[names[i]] " | " text[names[i]] " |"
        }
        for (i = 1; i <= n_entries; i++) if (i > 1 || entries[i] != "") { if (!begun++) print ""; print entries[i] }
    }' "$record" >"$new"
cat "$new" >"$record"
echo "gpu_check.sh: $record has a new entry"
