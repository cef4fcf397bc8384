/* What a tokenizer puts before, between and after two texts that share a row. */
#include "client/text/tokenizer/tokenizer_internal.h"

#include <string.h>

/* Appends a special token to its place in the row. False: there is no such token, or there are too many. */
static bool add_id(struct client_pair *pair, unsigned place, const struct client_tokenizer *t, const json_t *id)
{
    const json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;

    if (number < 0 || number >= client_tokenizer_n_ids(t) || !t->tokens[number].text ||
        pair->n[place] == CLIENT_PAIR_MOST)
        return false;
    pair->ids[place][pair->n[place]++] = (uint32_t)number;
    return true;
}

/* Segments of a template's pieces: 0, and from one of them on 1. */
struct segments {
    unsigned place;
    json_int_t last;
};

/* Follows the segment of the next piece. It may rise between the texts alone, since a row has one place where it
 * does. */
static bool pair_follow(struct client_pair *pair, struct segments *s, const json_t *piece, bool is_text)
{
    const json_int_t segment = json_integer_value(json_object_get(piece, "type_id"));

    if (segment < s->last || segment > 1 || (segment > s->last && s->place != 1))
        return false;
    if (segment > s->last)
        pair->has_second = true, pair->n_first = pair->n[1];
    s->last = segment;
    s->place += is_text;
    return s->place <= 2;
}

/* {"pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, ...]} */
static bool pair_read_template(struct client_pair *pair, const struct client_tokenizer *t, const json_t *step)
{
    const json_t *specials = json_object_get(step, "special_tokens"), *piece, *id;
    struct segments segments = {0, 0};
    size_t i, k;

    json_array_foreach(json_object_get(step, "pair"), i, piece)
    {
        const json_t *special = json_object_get(piece, "SpecialToken"), *text = json_object_get(piece, "Sequence");
        const char *name = json_string_value(json_object_get(special ? special : text, "id"));
        const unsigned place = segments.place;
        if (!name || !pair_follow(pair, &segments, special ? special : text, !special))
            return false;
        if (!special && strcmp(name, place == 0 ? "A" : "B") != 0)
            return false;
        json_array_foreach(special ? json_object_get(json_object_get(specials, name), "ids") : NULL, k, id)
        {
            if (!add_id(pair, place, t, id))
                return false;
        }
    }
    return segments.place == 2;
}

/* BERT: [CLS] A [SEP] B [SEP], the last two of segment 1. RoBERTa: <s> A </s></s> B </s>, all of segment 0. */
static bool read_processing(struct client_pair *pair, const struct client_tokenizer *t, const json_t *step)
{
    const bool roberta = strcmp(tokenizer_type(step), "RobertaProcessing") == 0;
    const json_t *cls = json_array_get(json_object_get(step, "cls"), 1),
                 *sep = json_array_get(json_object_get(step, "sep"), 1);

    pair->has_second = !roberta;
    pair->n_first = 1;
    return add_id(pair, 0, t, cls) && add_id(pair, 1, t, sep) && (!roberta || add_id(pair, 1, t, sep)) &&
           add_id(pair, 2, t, sep);
}

void tokenizer_read_pair(struct client_tokenizer *t, const json_t *step)
{
    struct client_pair pair = {0};
    const bool is_template = strcmp(tokenizer_type(step), "TemplateProcessing") == 0;

    t->has_pair = is_template ? pair_read_template(&pair, t, step) : read_processing(&pair, t, step);
    t->pair = pair;
}

const struct client_pair *client_tokenizer_pair(const struct client_tokenizer *t)
{
    return t->has_pair ? &t->pair : NULL;
}
