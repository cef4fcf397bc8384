/* Texts that end before a stop string, in whatever pieces they come. */
#include "client/text/stop.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <string.h>

static const struct {
    const char *text, *stops[3], *before; /* before: the text up to the stop string, or all of it */
    bool met;
} cases[] = {
    {"one END two", {"END"}, "one ", true},
    {"one EN", {"END"}, "one EN", false},
    {"EEND", {"END"}, "E", true},
    {"aabaabaac", {"aabaac"}, "aab", true},
    {"abcd", {"abcd", "bc"}, "a", true},       /* bc is complete first */
    {"abcd", {"bcd", "abcd", "cd"}, "", true}, /* complete at once: the longest */
    {"Zürich\xF0\x9F\x98\x80!", {"\xF0\x9F\x98\x80"}, "Zürich", true},
    {"\xF0\x9F\x98\x81", {"\xF0\x9F\x98\x80"}, "\xF0\x9F\x98\x81", false},
    {"\n\n\nx", {"\n\n"}, "", true},
    {"", {"x"}, "", false},
    {"x", {"x"}, "", true},
};

/* Pushes the text in pieces: bit i of `cuts` cuts after byte i. Whatever is held back begins a stop string. */
static void check(int which, unsigned cuts)
{
    const char *text = cases[which].text, *out;
    const size_t n = strlen(text);
    char got[64];
    size_t n_got = 0, n_out, n_stops = 0, from = 0;
    struct client_stop stop;

    while (n_stops < 3 && cases[which].stops[n_stops])
        n_stops++;
    ck_assert_int_eq(client_stop_check(cases[which].stops, n_stops, NULL), 0);
    client_stop_init(&stop, cases[which].stops, n_stops);
    for (size_t i = 0; i <= n; i++) {
        if (i < n && !(cuts >> i & 1))
            continue;
        const size_t to = i < n ? i + 1 : n;
        ck_assert_int_eq(client_stop_push(&stop, &out, &n_out, text + from, to - from, i == n, NULL), 0);
        memcpy(got + n_got, out, n_out);
        n_got += n_out, from = to;
        for (size_t held = to - n_got; !stop.met && i < n && held > 0; held = 0) {
            bool begins = false;
            for (size_t k = 0; k < n_stops; k++)
                begins = begins || (held < strlen(cases[which].stops[k]) &&
                                    memcmp(cases[which].stops[k], text + n_got, held) == 0);
            ck_assert(begins);
        }
    }
    got[n_got] = 0;
    ck_assert_str_eq(got, cases[which].before);
    ck_assert_int_eq(stop.met, cases[which].met);
    client_stop_free(&stop);
}

TEST_EACH(a_text_ends_before_a_stop_string_in_any_pieces, COUNT(cases))
{
    const size_t n = strlen(cases[_i].text);

    for (unsigned cuts = 0; cuts < 1u << n; cuts++)
        check(_i, cuts);
}

TEST(a_second_text_begins_without_the_first)
{
    static const char *const stops[] = {"ab"};
    struct client_stop stop;
    const char *out;
    size_t n;

    client_stop_init(&stop, stops, 1);
    ck_assert_int_eq(client_stop_push(&stop, &out, &n, "xa", 2, false, NULL), 0);
    ck_assert(n == 1 && *out == 'x');
    client_stop_begin(&stop);
    ck_assert_int_eq(client_stop_push(&stop, &out, &n, "b", 1, false, NULL), 0);
    ck_assert(n == 1 && *out == 'b' && !stop.met);
    client_stop_free(&stop);
}

TEST(stop_strings_that_no_text_holds_are_refused)
{
    static const char *const empty[] = {"a", ""}, *const broken[] = {"\xC3"};
    struct error err;

    ck_assert_int_eq(client_stop_check(empty, 2, &err), -EDOM);
    ck_assert_holds(err.text, "--stop is empty");
    ck_assert_int_eq(client_stop_check(broken, 1, &err), -EDOM);
    ck_assert_holds(err.text, "--stop: text 1 is not UTF-8");
}
