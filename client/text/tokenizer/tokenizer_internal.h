/* client/text/tokenizer/tokenizer_internal.h - a tokenizer's parts, in the order in which text passes them.
 *
 *   added     tokens that are looked for in the text as it is
 *   normal    changes to the text between them
 *   added     tokens that are looked for in the changed text
 *   lead      changes to what is left between those
 *   steps     cut it into words
 *   model     makes tokens of a word: BPE over bytes or characters, WordPiece, or Unigram
 *   ends      tokens before and after a text
 *   decoding  makes text of tokens again
 *
 * Text comes in pieces. Each part hands on what no further text can change, as "open" text, and leaves the rest; the
 * last piece is "closed". Where a part changes text, it keeps what the next part left. */
#ifndef CLIENT_TEXT_TOKENIZER_TOKENIZER_INTERNAL_H
#define CLIENT_TEXT_TOKENIZER_TOKENIZER_INTERNAL_H

#include "client/text/tokenizer.h"
#include "client/text/tokenizer/characters/charsmap.h"
#include "client/text/tokenizer/characters/pattern.h"
#include "client/text/tokenizer/side.h"
#include "client/text/tokenizer/characters/unicode.h"

struct tokenizer_token {
    char *text; /* (n) bytes, in the tokenizer's block; NULL: this id has no token */
    uint32_t n, n_shown;
    const char *shown; /* (n_shown), borrowed: what is decoded instead: an added token in its normal form; or NULL */
    bool special;      /* an added token that a decoder may leave out */
};

/* Ids by their text: 1 + id at the text's hash, or the next free place; 0: empty. */
struct tokenizer_map {
    uint32_t *places; /* (mask + 1), owned */
    size_t mask;
};

/* left and right merge into id; lower ranks merge first. */
struct tokenizer_merge {
    uint32_t left, right, rank, id; /* rank UINT32_MAX: an empty slot of the table */
};

/* A text that is a token wherever it occurs; lstrip and rstrip absorb the whitespace before and after it; a single word
 * has no word character beside it. */
struct tokenizer_added {
    char *text; /* (n), owned */
    size_t n;
    uint32_t id;
    bool lstrip, rstrip, single_word, special;
    bool refused; /* transformers does not know it: a text that has it is refused */
};

struct tokenizer_set {
    struct tokenizer_added *tokens; /* (n), by first byte, longest first, then by text */
    size_t n, longest;              /* longest: bytes of the longest one */
    uint32_t first[257];            /* index of the first token that begins with a byte */
    bool lstrip, single_word;       /* at least one has it */
    bool splits;                    /* special ones are text like any other */
};

enum tokenizer_change_kind {
    TOKENIZER_FORM,    /* a normal form */
    TOKENIZER_TABLE,   /* SentencePiece's own */
    TOKENIZER_LOWER,   /* lower case */
    TOKENIZER_MARKS,   /* removes marks */
    TOKENIZER_BERT,    /* any of clean, han, accents, lower */
    TOKENIZER_REPLACE, /* each `from`, or match of pattern, by `to` */
    TOKENIZER_PREPEND, /* `to` in front of the text, if there is any */
    TOKENIZER_LEAD,    /* `to` before the text, unless it begins with `to` */
    TOKENIZER_STRIP    /* white space at the left, the right end */
};

struct tokenizer_change {
    enum tokenizer_change_kind kind;
    enum tokenizer_form form;
    char *from, *to; /* owned */
    struct tokenizer_pattern *pattern;
    struct tokenizer_charsmap *table; /* owned */
    bool left, right;
    bool clean, han, accents, lower;
    bool first; /* LEAD: only where the whole text begins */
};

/* Changes, in their order. */
struct tokenizer_changes {
    struct tokenizer_change *list; /* (n), owned */
    size_t n;
    bool whole;  /* they need all of the text at once */
    bool at_cut; /* pieces of the text must begin where tokenizer_changes_cut says */
};

enum tokenizer_behaviour {
    TOKENIZER_ISOLATED,
    TOKENIZER_REMOVED,
    TOKENIZER_CONTIGUOUS,
    TOKENIZER_MERGED_WITH_PREVIOUS,
    TOKENIZER_MERGED_WITH_NEXT
};

/* A step of cutting text into words: by a pattern, or a change to each word so far. */
struct tokenizer_step {
    struct tokenizer_pattern *pattern; /* NULL: changes */
    enum tokenizer_behaviour behaviour;
    bool inverted; /* what lies between two matches counts as a match, and the matches as what lies between */
    struct tokenizer_changes changes;
};

enum {
    TOKENIZER_MAX_STEPS = 16,
    TOKENIZER_MAX_PARTS = 64, /* of a Sequence */
    TOKENIZER_MAX_ENDS = 64   /* tokens before each text, and after it: published tokenizers have up to 2 */
};

enum tokenizer_decode_kind {
    TOKENIZER_DECODE_REPLACE,   /* each `from` by `to` */
    TOKENIZER_DECODE_FALLBACK,  /* <0xE2><0x82><0xAC> by the characters that these bytes are */
    TOKENIZER_DECODE_FUSE,      /* all tokens so far are one */
    TOKENIZER_DECODE_STRIP,     /* up to `start` times `from` at the left of a token, `stop` times at its right */
    TOKENIZER_DECODE_METASPACE, /* `from` is a blank; in the first token it is nothing if `drops` */
    TOKENIZER_DECODE_WORDPIECE, /* a blank before each token but the first; after `from`, nothing */
    TOKENIZER_DECODE_JOIN       /* a blank before each token but the first */
};

struct tokenizer_decode {
    enum tokenizer_decode_kind kind;
    char *from, *to; /* owned */
    size_t start, stop;
    bool drops, cleans;
};

/* Takes blanks from a text that comes in pieces, as clean_up_tokenization_spaces has it. */
enum { TOKENIZER_TIDY_STAGES = 10 };
struct tokenizer_tidy {
    uint8_t n_held[TOKENIZER_TIDY_STAGES]; /* bytes of what each stage looks for that have come */
    struct client_text out;                /* owned */
};

/* Sets *text (*n bytes) to what these bytes add, borrowed until the next call. last: no more will come. -ENOMEM. */
int tokenizer_tidy_push(struct tokenizer_tidy *tidy, const char **text, size_t *n, const char *bytes, size_t n_bytes,
                        bool last, struct error *err);

/* True if the settings in tokenizer_config.json (may be NULL) ask for it, for BPE by the one that says so. */
bool tokenizer_tidy_is_asked(const json_t *config, bool bpe);

/* Cache of words and their tokens, indexed by the word's hash; a new word replaces the old one. Most words of a text
 * are short and frequent: 2^15 entries (1.8 MB) serve 9 of 10. */
struct tokenizer_word {
    uint8_t n_bytes, n_ids; /* n_bytes 0: empty */
    uint8_t bytes[22];
    uint32_t ids[8];
};

enum { TOKENIZER_CACHE_BITS = 15 };

/* Text that has been changed and not been used up yet, of a segment that more pieces may follow. */
struct tokenizer_held {
    struct client_text text;
    bool begun;      /* the segment has given some text already */
    bool first;      /* what is held begins the whole text */
    uint32_t before; /* the character before what is looked at; 0: none */
};

/* What client_tokenizer_encode_marked looks for, as places of the text that is looked at: of the changed text while it
 * is encoded. */
struct tokenizer_marks {
    size_t *at;    /* (n) bytes, ascending */
    bool *ends;    /* (n) the byte is the last one before an end */
    size_t *token; /* (n) the token that each is in; known for those before `next` */
    size_t n, next;
    size_t
        *plain; /* (n_plain) in pairs, ascending: where a part begins that holds no special tokens, and where it ends */
    size_t n_plain;
    size_t n_hidden; /* special tokens that plain text has spelled */
};

/* Working memory, for one thread: for merging a word its tokens as a linked list, and a heap of the pairs that can
 * merge; for text in pieces what is held. */
struct tokenizer_work {
    struct tokenizer_word *cache; /* (1 << TOKENIZER_CACHE_BITS) */
    uint32_t *ids, *next, *prev;  /* (cap) */
    struct tokenizer_pair {
        uint64_t order; /* rank << 32 | position of the left token */
        uint32_t id;    /* the merged token */
    } * heap;           /* (3 * cap) */
    size_t cap, n_heap;
    struct tokenizer_matcher matcher;
    uint64_t grows; /* bytes by which changes may still lengthen the text */
    struct tokenizer_held held[2];
    struct tokenizer_marks *marks; /* NULL, but for client_tokenizer_encode_marked */
    size_t n_spelled;              /* by the last text of client_tokenizer_encode_marked */
    bool begun;                    /* some of the whole text has been used */
    bool led;                      /* the text comes behind ends[0] */
    uint32_t final;                /* the text's last token, if it is one that would follow it; else CLIENT_NO_TOKEN */
    struct client_text between[2]; /* between two changes */
    struct client_text changed[TOKENIZER_MAX_STEPS]; /* a word after the changes of a step */
};

struct client_tokenizer {
    bool is_bytes, shared;               /* shared: all but the working memory is another's */
    const struct tokenizer_class *class; /* of transformers; NULL: it takes tokenizer.json as it is */
    struct tokenizer_token *tokens;      /* (n_tokens), by id */
    uint32_t n_tokens, n_table;          /* n_table: ids of the model's table; added tokens may lie outside it */
    char *block;                         /* bytes of all tokens */
    struct tokenizer_map map;
    struct tokenizer_set added[2]; /* [0]: looked for in the original text; [1]: in the changed text */
    struct tokenizer_changes normal, lead;
    struct tokenizer_step *steps; /* (n_steps) */
    size_t n_steps;

    bool byte_level;     /* tokens are runs of bytes; else of characters */
    bool decodes_bytes;  /* the decoder says so, too */
    bool word_piece;     /* the model is WordPiece */
    bool unigram;        /* the model is Unigram; neither: BPE */
    bool no_bytes;       /* no token stands for a byte */
    bool takes_whole;    /* a word that is a token is not merged */
    bool fuses;          /* a run of unknown characters is one token */
    uint32_t unknown;    /* token of an unknown character, or CLIENT_NO_TOKEN */
    uint32_t bytes[256]; /* the token of each byte; for characters without a token, CLIENT_NO_TOKEN if it has none */
    struct tokenizer_merge *merges; /* (merge_mask + 1) */
    size_t merge_mask, n_merges;
    uint64_t *joined; /* (joined_mask + 1 bits): pairs of characters within tokens; NULL: words are not cut there */
    uint32_t joined_mask;
    char *continuing; /* WordPiece: begins each token of a word but the first; owned */
    size_t most_characters;
    double *scores, least_score; /* (n_scores), by id: Unigram; owned */
    size_t n_scores, longest;    /* longest: bytes of its longest token */

    uint32_t end, mask, *ends[2];
    size_t n_ends[2];
    bool has_pair;
    struct client_pair pair;
    struct tokenizer_decode *decoding; /* (n_decoding); without any a token's bytes are its text */
    size_t n_decoding;
    bool tidies; /* the text loses blanks before punctuation: tidy.c */
    struct tokenizer_work work;
};

/* ---- What files say: each -EINVAL with a sentence, -ENOMEM ---- */

/* Fills in all, but what generation_config.json says of `end`, from tokenizer.json (n bytes), or from GPT-2's files. */
int tokenizer_load_json(struct client_tokenizer *t, const json_t *side, const char *model_type, const char *text,
                        size_t n, uint32_t vocabulary, struct error *err);
int tokenizer_load_gpt2(struct client_tokenizer *t, const json_t *side, const char *model_type, uint32_t vocabulary,
                        struct error *err);

/* tokenizer_type: a step's type, for a sentence. tokenizer_is_nothing: true of null and the like. */
const char *tokenizer_type(const json_t *object);
bool tokenizer_is_nothing(const json_t *value);

/* Refuses a part of a tokenizer by name. */
int tokenizer_refuse(struct error *err, const char *part, const char *type);

/* Reads a part of tokenizer.json, `name`, by steps: it is one, or a Sequence with a list of them, `key`. NULL, null:
 * none. */
int tokenizer_read_part(struct client_tokenizer *t, const json_t *part, const char *name, const char *key,
                        int (*read_step)(struct client_tokenizer *t, const json_t *step, struct error *err),
                        struct error *err);

/* {"String": text} or {"Regex": expression} as a pattern; *text is the former's text, borrowed, or NULL. */
int tokenizer_read_pattern(struct tokenizer_pattern **out, const char **text, const json_t *pattern, struct error *err);

/* True for the UTF-8 of a single character; NULL is none. */
bool tokenizer_is_character(const char *text);

/* Options of Metaspace, a pre-tokenizer or a decoder. */
struct tokenizer_metaspace {
    const char *mark;   /* in place of a blank; borrowed from the step */
    bool always, never; /* the mark precedes each text; precedes none. Neither: the first text */
};

int tokenizer_read_metaspace(struct tokenizer_metaspace *out, const json_t *step, const char *part, struct error *err);

/* Reads a Unigram model. *vocabulary: its tokens as {"text": id, ...}, owned, also after a failure. */
int tokenizer_read_unigram(struct client_tokenizer *t, const json_t *model, json_t **vocabulary, struct error *err);
/* Of a Unigram model, before its first word. rounds: scores become what serde_json makes of them, which reads them for
 * Hugging Face's tokenizers. It decides between ways to cut a word whose sums differ by rounding alone. transformers' own
 * classes take the vocabulary as Python reads it. */
void tokenizer_take_scores(struct client_tokenizer *t, bool rounds);

int tokenizer_read_normalizer(struct client_tokenizer *t, const json_t *normalizer, struct error *err);
int tokenizer_read_steps(struct client_tokenizer *t, const json_t *pre_tokenizer, struct error *err);
int tokenizer_read_ends(struct client_tokenizer *t, const json_t *post_processor, struct error *err);
/* Appends a token to those before (side 0) or after (1) a text. -EINVAL, also if the model's table lacks it. */
int tokenizer_add_end(struct client_tokenizer *t, unsigned side, uint32_t id, struct error *err);
void tokenizer_read_pair(struct client_tokenizer *t, const json_t *step); /* one that read_ends has accepted */
int tokenizer_read_decoder(struct client_tokenizer *t, const json_t *decoder, struct error *err);

/* The steps of GPT-2: its pattern, then bytes. */
int tokenizer_gpt2_steps(struct client_tokenizer *t, struct error *err);

/* ---- Tokens and merges ---- */

/* Builds tokens and merges (NULL: none) from a vocabulary {"token": id, ...} and merges ["a b", ...] or [["a", "b"],
 * ...], and added tokens {"text": id, ...}. If t->byte_level, vocabulary and merges are in GPT-2's byte letters. */
int tokenizer_build(struct client_tokenizer *t, json_t *vocabulary, json_t *merges, json_t *added, uint32_t n_ids,
                    struct error *err);

/* The letter that stands for a byte, as UTF-8, not terminated: GPT-2's table, which has no whitespace. Returns its
 * length, 1 or 2. */
unsigned tokenizer_letter(char out[3], unsigned byte);

/* The token of the vocabulary with this text, or CLIENT_NO_TOKEN. */
uint32_t tokenizer_find_id(const struct client_tokenizer *t, const char *text, size_t n);

/* Makes an empty table for n merges. */
int tokenizer_merges_init(struct client_tokenizer *t, size_t n, struct error *err);
void tokenizer_merges_add(struct client_tokenizer *t, const struct tokenizer_merge *merge);

/* The merge of the two tokens, or NULL. */
const struct tokenizer_merge *tokenizer_find_merge(const struct client_tokenizer *t, uint32_t left, uint32_t right);

/* Bit of `joined` for two characters. Different pairs may share a bit. */
static inline uint32_t tokenizer_joined_bit(const struct client_tokenizer *t, uint32_t left, uint32_t right)
{
    const uint64_t x = ((uint64_t)left << 21 | right) * 0x9E3779B97F4A7C15;
    return (uint32_t)(x >> 40) & t->joined_mask;
}

/* True if each byte is the token of its value and nothing else happens: text is then its own tokens. */
bool tokenizer_is_bytes(const struct client_tokenizer *t);

/* ---- Added tokens, in added.c ---- */

/* Opens the added tokens; ids were checked, and the normalizer was read. */
int tokenizer_added_open(struct client_tokenizer *t, const struct tokenizer_side *side, struct error *err);
void tokenizer_added_close(struct tokenizer_set *set);

/* ---- Marks, in marks.c: NULL for marks is none ---- */

/* True if a special token at `at` is a text that somebody wrote. *skipped: where to look next; or there is a shorter
 * token at `at`, which becomes *token. */
bool tokenizer_marks_hide(const struct tokenizer_added **token, size_t *skipped, struct tokenizer_marks *marks,
                          const struct tokenizer_set *set, const char *text, size_t at);

/* The text up to `end`, as far as it has not been passed, is in token number `token`. */
void tokenizer_marks_pass(struct tokenizer_marks *marks, size_t end, size_t token);

/* A word, [from, end) of the text, has become the tokens ids (n_ids), numbered from `token`. */
void tokenizer_marks_pass_word(struct tokenizer_marks *marks, const struct client_tokenizer *t, const char *text,
                               size_t from, size_t end, const uint32_t *ids, size_t n_ids, size_t token);

/* A part of a text that is changed, and what it becomes; begins, first: as tokenizer_changes_apply has them. */
struct tokenizer_changed {
    const struct tokenizer_changes *changes;
    const char *text; /* [from, to) of it */
    size_t from, to;
    bool begins, first;
    const char *made; /* (n_made) */
    size_t n_made;
};

/* Turns places into those of the changed text. *kept holds what tokenizer_marks_return needs; -ENOMEM and the errors of
 * changes. */
int tokenizer_marks_enter(size_t **kept, struct tokenizer_marks *marks, struct tokenizer_work *work,
                          const struct tokenizer_changed *changed, struct error *err);
/* Turns them back, and frees what was kept. */
void tokenizer_marks_return(struct tokenizer_marks *marks, size_t *kept);

/* The longest token of the set at the start of text (n bytes), or NULL. *steps grows by what that takes. */
const struct tokenizer_added *tokenizer_added_at(const struct tokenizer_set *set, const char *text, size_t n,
                                                 uint64_t *steps);

/* Steps of looking up each of the n beginnings of n bytes by its hash, for tokenizer_matcher_spend. */
static inline uint64_t tokenizer_lookups(size_t n)
{
    return n + (uint64_t)n * n / 256;
}

/* ---- Changes, in changes.c ---- */

/* Adds a change; takes ownership of what it points to, also on failure. */
int tokenizer_changes_add(struct tokenizer_changes *changes, struct tokenizer_change change, struct error *err);
void tokenizer_changes_free(struct tokenizer_changes *changes);

/* Appends what the changes make of text (n bytes), a piece of a segment. begins: nothing came before it; *first: not
 * even in other segments. Sets that to false if the changes remove the character with which the whole text begins. */
int tokenizer_changes_apply(struct client_text *out, const struct tokenizer_changes *changes,
                            struct tokenizer_work *work, const char *text, size_t n, bool begins, bool *first,
                            struct error *err);

/* The last place in (from, to] where text may be cut into pieces that are changed independently; from: none. */
size_t tokenizer_changes_cut(const struct tokenizer_changes *changes, const char *text, size_t from, size_t to);

/* ---- Words ---- */

/* A part of a text; first: it begins the whole text. */
struct tokenizer_segment {
    const char *text;
    size_t from, to;
    bool closed, first;
};

/* Cuts a segment into words and appends their tokens; *used is where what is left begins: nothing if it is closed. */
int tokenizer_encode_steps(struct client_tokens *out, size_t *used, struct client_tokenizer *t, size_t step,
                           struct tokenizer_segment s, struct error *err);
void tokenizer_steps_free(struct client_tokenizer *t);

/* End of the first part of text (n bytes) that BPE may tokenise on its own: no token crosses it. n: there is none. */
size_t tokenizer_word_cut(const struct client_tokenizer *t, const char *text, size_t n);

/* Writes the tokens of a word into work->ids. */
int tokenizer_word_piece(size_t *n_ids, struct client_tokenizer *t, const char *word, size_t n, struct error *err);

int tokenizer_unigram(size_t *n_ids, struct client_tokenizer *t, const char *word, size_t n, struct error *err);

/* Makes room for the tokens of a word of n bytes. */
int tokenizer_work_reserve(struct tokenizer_work *work, size_t n, struct error *err);
/* A text of n bytes begins: it may take TOKENIZER_STEPS and grow by TOKENIZER_GROWTH times its length, and by 64 KiB.
 * No normal form makes more than 11 bytes of one, nor a mark for each blank more than 3. */
enum { TOKENIZER_GROWTH = 64, TOKENIZER_LEAST_GROWTH = 64 << 10 };
void tokenizer_work_allow(struct tokenizer_work *work, size_t n);

int tokenizer_work_init(struct tokenizer_work *work, struct error *err);
void tokenizer_work_free(struct tokenizer_work *work);

/* As client_tokenizer_encode, for whole characters. */
int tokenizer_encode_text(struct client_tokens *out, size_t *used, struct client_tokenizer *t, const char *text,
                          size_t n, bool last, struct error *err);

/* Forgets what is held of a text. */
void tokenizer_forget(struct tokenizer_work *work);

void tokenizer_decoding_free(struct client_tokenizer *t);

#endif
