# "passed failed skipped" of what `ctest -V` printed. The unit is one test of Check, as in its line "100%: Checks: 8, Failures: 0,
# Errors: 0"; a program without such a line, or one that fails after it, counts as one. A test that Check counts as passed and
# that wrote "skipped: " (TEST_SKIP of tests/kit/test.h) is skipped, as is a whole program that exits with 77.
#
# usage: awk -f tools/summary.awk LOG

/^[0-9]+: skipped: / { split($0, field, ":"); left[field[1]]++ }

match($0, /^[0-9]+: [0-9]+%: Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/) {
    split(substr($0, 1, RLENGTH), field, /[^0-9]+/)
    checks[field[1]] += field[3]; bad[field[1]] += field[4] + field[5]
}

match($0, /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: /) {
    split(substr($0, 1, RLENGTH), field, "#")
    id = field[2] + 0
    if (/\*\*\*Skipped/) { skipped++; next }
    failed += bad[id]
    passed += checks[id] - bad[id] - left[id]
    skipped += left[id]
    if (/ Passed /) { if (!checks[id]) passed++ }
    else if (!bad[id]) failed++
    programs++
}

END { print passed + 0, failed + (programs || skipped ? 0 : 1), skipped + 0 } # no test at all is a failure
