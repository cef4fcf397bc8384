/* Room in the list is made before tokens are written, and the counts advance last: after a failure the corpus is what
 * it was, and the next sample overwrites what was written. The file has no name, so it is gone with the process,
 * however that ends. */
#include "client/corpus/corpus.h"

#include "client/data/data_file.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

int client_corpus_init(struct client_corpus *out, struct error *err)
{
    *out = (struct client_corpus){.fd = client_data_nameless("tokens", err)};
    return out->fd < 0 ? out->fd : 0;
}

void client_corpus_free(struct client_corpus *corpus)
{
    free(corpus->list);
    if (corpus->fd >= 0)
        close(corpus->fd);
    *corpus = (struct client_corpus){.fd = -1};
}

static int corpus_make_room(struct client_corpus *corpus, struct error *err)
{
    const size_t cap = corpus->cap ? 2 * corpus->cap : 1024;

    if (corpus->n < corpus->cap)
        return 0;
    if (corpus->n >= UINT32_MAX / 2)
        return error_set(err, -E2BIG, "more than %zu rows", corpus->n);
    struct client_example *larger = realloc(corpus->list, cap * sizeof *larger);
    if (!larger)
        return error_memory(err);
    corpus->list = larger, corpus->cap = cap;
    return 0;
}

int client_corpus_add(struct client_corpus *corpus, struct client_example example, const uint32_t *ids,
                      const struct client_data_file *file, struct error *err)
{
    const size_t n = (size_t)example.n[0] + example.n[1];
    int rc = corpus_make_room(corpus, err);

    if (!rc)
        rc = client_data_write(corpus->fd, file, ids, n * sizeof *ids, corpus->n_tokens * sizeof *ids, err);
    if (rc)
        return rc;
    example.at = corpus->n_tokens;
    corpus->list[corpus->n++] = example;
    corpus->n_tokens += n;
    return 0;
}

int client_corpus_tokens(const struct client_corpus *corpus, uint32_t *out, size_t k, size_t n, struct error *err)
{
    return client_data_reread(corpus->fd, out, corpus->list[k].at, n, err);
}
