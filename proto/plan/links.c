/* The links of a class are the corners of the convex hull of its sets of kept values, by bytes and by seconds that
 * recomputing takes: between two corners, blocks are divided among both sets, and no third one lies below. */
#include "proto/plan/links.h"

#include "proto/plan/memory/layers.h"
#include "proto/plan/time/work.h"

void plan_links_plain(struct plan_links *out, const struct model *model)
{
    for (out->n = 0; out->n < model->n_classes; out->n++)
        out->of[out->n] = (struct plan_link){.class = out->n, .below = MODEL_KEEPS_NOTHING, .above = MODEL_KEEPS_ALL};
}

static uint32_t links_of_class(struct plan_link links[MODEL_KEEPINGS - 1], const struct plan_work *work,
                               const struct plan *plan, const struct model *model, uint32_t class)
{
    const uint32_t n = model->classes[class].program->n_keepings;
    double seconds[MODEL_KEEPINGS];
    uint64_t bytes[MODEL_KEEPINGS];
    uint32_t n_links = 0;

    for (uint32_t i = 0; i < n; i++) {
        seconds[i] = plan_work_keeping(work, class, i);
        bytes[i] = plan_keep(plan, model, class, i).bytes;
    }
    for (uint32_t at = 0, next = 0;; at = next) {
        double best = 0;
        for (uint32_t i = 0; i < n; i++) {
            const double saved = seconds[at] - seconds[i];
            if (bytes[i] <= bytes[at] || !(saved > 0))
                continue;
            const double rate = saved / (double)(bytes[i] - bytes[at]);
            if (rate > best || (rate == best && bytes[i] < bytes[next]))
                best = rate, next = i;
        }
        if (next == at)
            return n_links;
        links[n_links++] = (struct plan_link){class, at, next, best};
    }
}

void plan_links_best(struct plan_links *out, const struct model *model, const struct plan_setting *setting,
                     const struct profile *profile, struct plan_prices *prices, uint32_t rows)
{
    const struct plan plan = {.setting = *setting, .choice = {.microbatch = rows}};
    struct plan_link links[MODEL_CLASSES][MODEL_KEEPINGS - 1];
    uint32_t n[MODEL_CLASSES] = {0}, next[MODEL_CLASSES] = {0};
    struct plan_work work;

    plan_work_init(&work, &plan, model, profile, prices);
    for (uint32_t c = 0; c < model->n_classes; c++)
        n[c] = links_of_class(links[c], &work, &plan, model, c);
    for (out->n = 0;; out->n++) {
        const struct plan_link *best = NULL;
        for (uint32_t c = 0; c < model->n_classes; c++)
            if (next[c] < n[c] && (!best || links[c][next[c]].rate > best->rate))
                best = &links[c][next[c]];
        if (!best)
            return;
        next[best->class]++;
        out->of[out->n] = *best;
    }
}

uint32_t plan_links_blocks(const struct plan_links *links, const struct model *model)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < links->n; i++)
        n += model->classes[links->of[i].class].n_blocks;
    return n;
}

void plan_links_keep(struct plan_choice *choice, const struct plan_links *links, const struct model *model,
                     uint32_t steps)
{
    uint32_t n_blocks;

    for (const struct plan_link *link = links->of; steps > 0; link++, steps -= n_blocks) {
        n_blocks = model->classes[link->class].n_blocks;
        if (steps < n_blocks) {
            choice->keeping[link->class] = (struct plan_keeping){steps, link->above, link->below};
            return;
        }
        choice->keeping[link->class] = (struct plan_keeping){n_blocks, link->above, MODEL_KEEPS_NOTHING};
    }
}
