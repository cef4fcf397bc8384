/* Packings, by hand and against first fit as it is written in books. */
#include "client/order/packing.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

/* Documents of which four in five take less than a quarter of a row. */
enum { N = 700, SEQ = 64, SEED = 3 };

/* 1 to SEQ, mostly short; Marsaglia's xorshift. */
static void draw_lengths(uint32_t lengths[N])
{
    uint64_t state = 88172645463325252u;

    for (int i = 0; i < N; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        lengths[i] = 1 + (uint32_t)(state % (i % 5 ? 16 : SEQ));
    }
}

static void open_packing(struct client_packing *p, const uint32_t *lengths, uint32_t n, uint32_t seq,
                         enum eps_order order, uint64_t seed)
{
    struct error err;

    ck_assert_int_eq(client_packing_init(p, lengths, n, seq, order, seed, &err), 0);
}

static void check_row(const struct client_packing *p, uint32_t row, const uint32_t *expected, uint32_t n)
{
    const uint32_t *documents;
    uint32_t got;

    client_packing_get(&documents, &got, p, row);
    ck_assert_uint_eq(got, n);
    ck_assert_mem_eq(documents, expected, n * sizeof *documents);
}

/* Rows of 10: 4 and 5; then 3, for which 1 is left, and 7; then the whole 10; 1, which the first row would have room
 * for. */
TEST(in_sequential_order_a_document_begins_a_row_where_the_last_has_no_room)
{
    static const uint32_t lengths[] = {4, 5, 3, 7, 10, 1};
    struct client_packing p;

    open_packing(&p, lengths, 6, 10, EPS_SEQUENTIAL, SEED);
    ck_assert_uint_eq(p.n_rows, 4);
    check_row(&p, 0, (uint32_t[]){0, 1}, 2);
    check_row(&p, 1, (uint32_t[]){2, 3}, 2);
    check_row(&p, 2, (uint32_t[]){4}, 1);
    check_row(&p, 3, (uint32_t[]){5}, 1);
    for (uint32_t k = 0; k < 9; k++)
        ck_assert_uint_eq(client_packing_row(&p, k), k % 4);
    ck_assert_uint_eq(client_packing_tokens(&p, 0), 0);
    ck_assert_uint_eq(client_packing_tokens(&p, 3), 29);
    ck_assert_uint_eq(client_packing_tokens(&p, 6), 30 + 19);
    client_packing_free(&p);
}

/* Shuffled, and as in the data. First fit leaves little room where documents are short: a twentieth here. */
TEST_EACH(each_document_is_in_one_row_and_no_row_is_too_long, 2)
{
    uint32_t lengths[N], seen[N] = {0};
    struct client_packing p;
    uint64_t all = 0;

    draw_lengths(lengths);
    open_packing(&p, lengths, N, SEQ, _i ? EPS_SEQUENTIAL : EPS_SHUFFLED, SEED);
    for (uint32_t row = 0; row < p.n_rows; row++) {
        const uint32_t *documents;
        uint32_t n, sum = 0;
        client_packing_get(&documents, &n, &p, row);
        ck_assert_uint_gt(n, 0);
        for (uint32_t i = 0; i < n; i++)
            seen[documents[i]]++, sum += lengths[documents[i]];
        ck_assert_uint_le(sum, SEQ);
        ck_assert_uint_eq(sum, p.tokens[row]);
        all += sum;
    }
    for (int i = 0; i < N; i++)
        ck_assert_uint_eq(seen[i], 1);
    ck_assert_uint_eq(client_packing_tokens(&p, p.n_rows), all);
    ck_assert(_i || (double)all > 0.95 * p.n_rows * SEQ);
    ck_assert_uint_eq(client_packing_tokens(&p, 3 * (uint64_t)p.n_rows), 3 * all);
    client_packing_free(&p);
}

/* Documents of one length fill rows in the order in which they come: so row after row they are the drawn order. By it,
 * first fit as a search through all rows gives the same rows. */
TEST(it_is_first_fit)
{
    uint32_t lengths[N], ones[N], room[N], n_rows = 0, counts[N] = {0};
    struct client_packing drawn, p;

    draw_lengths(lengths);
    for (int i = 0; i < N; i++)
        ones[i] = 1, room[i] = SEQ;
    open_packing(&drawn, ones, N, SEQ, EPS_SHUFFLED, SEED);
    open_packing(&p, lengths, N, SEQ, EPS_SHUFFLED, SEED);
    for (int i = 0; i < N; i++) {
        const uint32_t document = drawn.documents[i], *documents;
        uint32_t row = 0, n;
        while (room[row] < lengths[document])
            row++;
        room[row] -= lengths[document];
        n_rows = row < n_rows ? n_rows : row + 1;
        ck_assert_uint_lt(row, p.n_rows);
        client_packing_get(&documents, &n, &p, row);
        ck_assert_uint_lt(counts[row], n);
        ck_assert_uint_eq(documents[counts[row]++], document);
    }
    ck_assert_uint_eq(p.n_rows, n_rows);
    client_packing_free(&drawn);
    client_packing_free(&p);
}

/* And the same packing for the same seed, another one for another. */
TEST(an_epoch_takes_every_row_once_in_an_order_of_its_own)
{
    uint32_t lengths[N], taken[N] = {0};
    struct client_packing p, again, other;
    int same = 0;
    uint64_t sum = 0;

    draw_lengths(lengths);
    open_packing(&p, lengths, N, SEQ, EPS_SHUFFLED, SEED);
    open_packing(&again, lengths, N, SEQ, EPS_SHUFFLED, SEED);
    open_packing(&other, lengths, N, SEQ, EPS_SHUFFLED, SEED + 1);
    ck_assert_mem_eq(p.documents, again.documents, sizeof lengths);
    ck_assert(memcmp(p.documents, other.documents, sizeof lengths) != 0);
    for (uint64_t k = 0; k < 2 * (uint64_t)p.n_rows; k++) {
        const uint32_t row = client_packing_row(&p, k);
        ck_assert_uint_eq(client_packing_tokens(&p, k), sum);
        sum += p.tokens[row];
        taken[row]++;
        same += k < p.n_rows && row == client_packing_row(&p, k + p.n_rows);
    }
    for (uint32_t row = 0; row < p.n_rows; row++)
        ck_assert_uint_eq(taken[row], 2);
    ck_assert_int_lt(same, (int)p.n_rows / 4);
    client_packing_free(&p);
    client_packing_free(&again);
    client_packing_free(&other);
}
