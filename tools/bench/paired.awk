# The difference of two columns, a less b, paired by line: the mean; its 95 % interval by Student's t; and the true difference
# that as many pairs find in four of five cases (80 % power of the two-sided test at 5 %, from the noncentral t distribution,
# with the standard error seen here). It judges nothing: of few pairs, an interval that holds 0 says little. Input that lacks a
# number is refused.
#
# usage: awk -v a=COLUMN -v b=COLUMN -f tools/bench/paired.awk

function is_number(x) { return x ~ /^[-+]?[0-9.]+(e[-+]?[0-9]+)?$/ }

# P(|t| < x) with n degrees of freedom (Abramowitz and Stegun 26.7.3, 26.7.4)
function within(x, n,   angle, cosine, term, sum, i) {
    angle = atan2(x, sqrt(n)); cosine = cos(angle)
    term = n % 2 ? cosine : 1
    sum = n == 1 ? 0 : term
    for (i = n % 2 ? 3 : 2; i < n - 1; i += 2) { term *= cosine * cosine * (i - 1) / i; sum += term }
    return n % 2 ? (angle + sin(angle) * sum) * 2 / atan2(0, -1) : sin(angle) * sum
}

# P(z < x) of the normal distribution, to 1e-7 (Abramowitz and Stegun 26.2.17)
function below(x,   t, tail) {
    t = 1 / (1 + 0.2316419 * (x < 0 ? -x : x))
    tail = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail *= exp(-x * x / 2) / 2.5066282746
    return x < 0 ? tail : 1 - tail
}

# P(t > x) where the true mean is d standard errors: over the ratio s of the error seen to the true one, whose density is in
# proportion to s^(n-1) exp(-n s^2 / 2)
function power(d, x, n,   s, density, all, found) {
    for (s = 0.0005; s < 6; s += 0.001) {
        density = exp((n - 1) * log(s) - n * (s * s - 1) / 2)
        all += density; found += density * below(d - x * s)
    }
    return found / all
}

# t that holds 95 % of the distribution with n degrees of freedom
function quantile(n,   low, high, middle) {
    low = 1; high = 16
    while (high - low > 1e-9) {
        middle = (low + high) / 2
        if (within(middle, n) < 0.95) low = middle; else high = middle
    }
    return low
}

# The true mean, in standard errors, that the test at x finds in 80 %
function detectable(x, n,   low, high, middle) {
    low = 1; high = 32
    while (high - low > 1e-5) {
        middle = (low + high) / 2
        if (power(middle, x, n) < 0.8) low = middle; else high = middle
    }
    return low
}

!is_number($a) || !is_number($b) { bad = 1 }
{ d[NR] = $a - $b; mean = (mean * (NR - 1) + d[NR]) / NR }

END {
    if (bad || !NR) { printf "incomplete"; exit 1 }
    printf "%+.4f", mean
    if (NR == 1) { printf " (one pair: no interval)"; exit }
    for (i = 1; i <= NR; i++) squares += (d[i] - mean) ^ 2
    error = sqrt(squares / (NR - 1) / NR)
    t = quantile(NR - 1)
    printf " (95 %% interval %+.4f to %+.4f; 80 %% power from %.4f)", mean - t * error, mean + t * error,
        detectable(t, NR - 1) * error
}
