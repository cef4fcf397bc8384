#!/usr/bin/env bash
# Writes the findings in $results into $record: a dated entry with all of them, and each line of the list of what is
# unverified that passed goes to those verified; one that was verified and fails goes back.
# shellcheck disable=SC2154 # results and record are set by tools/gpu_check.sh
set -euo pipefail

fail() {
    echo "gpu_check.sh: $*" >&2
    exit 1
}
value() { # NAME: the text of a fact
    awk -F '|' -v name="$1" '$2 == name { text = $4 } END { print text }' "$results"
}

[ -s "$results" ] || fail "$results is empty: nothing has run yet"
[ -f "$record" ] || fail "$record is not there"
[ -z "$(value simulated)" ] || fail "$results comes from a simulator: nothing to record"
gpu=$(value device)
[ -n "$gpu" ] || fail "$results does not say which GPU it was: run the part probe too"

new=$(mktemp)
trap 'rm -f "$new"' EXIT
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || true)
awk -F '|' -v date="$(date -u +%Y-%m-%d)" -v gpu="${gpu%%,*}" -v commit="${commit:-no commit known}" -v results="$results" '
    function name_of(line) { return match(line, /^- `[a-z0-9._-]+`/) ? substr(line, 4, RLENGTH - 4) : "" }
    function plain(line) { sub(/ \([0-9-]+, [^()]*\)$/, "", line); return line }
    function list(lines, n,    i) {
        for (i = 1; i <= n; i++) print lines[i]
        print n ? "" : "None.\n"
    }
    BEGIN {
        while ((getline line < results) > 0) {
            split(line, f, "|")
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
