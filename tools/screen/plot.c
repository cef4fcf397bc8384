/* All panels are one script, and gnuplot keeps settings and data blocks from one panel to the next. So each panel
 * undoes what it sets (yrange, labels, offsets), and its blocks have names of their own. Blocks are printed before the
 * `plot` that draws them, as they cannot stand within that command. */
#include "tools/screen/plot.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static void halve(struct series *s)
{
    for (size_t i = 0; i < SERIES_MEANS / 2; i++) {
        const struct series_mean a = s->means[2 * i], b = s->means[2 * i + 1];
        s->means[i] = (struct series_mean){a.n_x + b.n_x, a.n_y + b.n_y, a.x + b.x, a.y + b.y};
    }
    s->n = SERIES_MEANS / 2;
    s->stride *= 2;
}

void series_add(struct series *s, double x, double y)
{
    if (s->stride == 0)
        s->stride = 1;
    if (s->n == 0 || s->means[s->n - 1].n_x == s->stride) {
        if (s->n == SERIES_MEANS)
            halve(s);
        s->means[s->n++] = (struct series_mean){0};
    }
    struct series_mean *mean = &s->means[s->n - 1];
    mean->n_x++;
    mean->x += x;
    if (isfinite(y)) {
        mean->n_y++;
        mean->y += y;
    }
}

void series_zero(struct series *out, const struct series *like)
{
    *out = *like;
    for (size_t i = 0; i < out->n; i++) {
        out->means[i].n_y = out->means[i].n_x;
        out->means[i].y = 0;
    }
}

double series_x(const struct series *s, size_t i)
{
    return s->means[i].x / (double)s->means[i].n_x;
}

double series_y(const struct series *s, size_t i)
{
    return s->means[i].n_y ? s->means[i].y / (double)s->means[i].n_y : NAN;
}

double series_most(const struct series *s)
{
    double most = NAN;

    for (size_t i = 0; i < s->n; i++)
        most = fmax(most, series_y(s, i)); /* ignores NAN */
    return most;
}

double series_least(const struct series *s)
{
    double least = NAN;

    for (size_t i = 0; i < s->n; i++)
        least = fmin(least, series_y(s, i));
    return least;
}

/* ---- The picture ---- */

static struct plot_category *find_category(struct plot_side *side, const char *name)
{
    for (size_t i = 0; i < side->n; i++) {
        if (strcmp(side->categories[i].name, name) == 0)
            return &side->categories[i];
    }
    if (side->n == PLOT_CATEGORIES)
        return NULL;
    struct plot_category *category = &side->categories[side->n++];
    snprintf(category->name, sizeof category->name, "%s", name);
    series_zero(&category->bytes, &side->all);
    return category;
}

static void plot_add_side(struct plot_side *side, double step, const struct eps_memory *memory)
{
    uint64_t bytes[PLOT_CATEGORIES] = {0};

    for (size_t i = 0; i < memory->n_rows; i++) {
        const struct plot_category *category = find_category(side, memory->rows[i].category);
        if (category)
            bytes[category - side->categories] += memory->rows[i].current;
    }
    for (size_t i = 0; i < side->n; i++)
        series_add(&side->categories[i].bytes, step, (double)bytes[i]);
    series_add(&side->all, step, (double)memory->current);
    series_add(&side->budget, step, memory->budget > 0 ? (double)memory->budget : NAN);
}

/* gnuplot treats the largest doubles as missing. */
static double drawable(double value)
{
    return fabs(value) < 1e30 ? value : NAN;
}

static void plot_add_score(struct plot *plot, const struct eps_score *score, bool held_out, double x)
{
    size_t i = 0;

    while (i < plot->n_scores && (plot->scores[i].held_out != held_out || strcmp(plot->scores[i].name, score->name)))
        i++;
    if (i == PLOT_SCORES)
        return;
    if (i == plot->n_scores) {
        snprintf(plot->scores[i].name, sizeof plot->scores[i].name, "%s", score->name);
        plot->scores[i].held_out = held_out;
        plot->n_scores++;
    }
    series_add(&plot->scores[i].series, x, drawable(score->value));
}

static void plot_add_held_out(struct plot *plot, uint64_t step, double loss)
{
    if (isnan(loss))
        return;
    if (plot->eval_loss.n == 0 || loss < plot->best.loss)
        plot->best = (struct plot_best){step, loss};
    series_add(&plot->eval_loss, (double)step, drawable(loss));
}

void plot_add(struct plot *plot, const struct eps_step *step)
{
    const double x = (double)step->step;

    if (plot->n_steps++ == 0) {
        plot->first = step->step;
        plot->best.loss = NAN;
        plot->has_before = !isnan(step->eval_before);
        plot_add_held_out(plot, step->step - 1, step->eval_before);
    }
    plot->last = step->step;
    series_add(&plot->loss, x, drawable(step->loss));
    plot->of_images = step->pixels > 0;
    series_add(&plot->rate, x, drawable(step->tokens_per_s / (step->pixels ? step->pixels : 1)));
    plot_add_held_out(plot, step->step, step->eval_loss);
    for (size_t i = 0; i < step->n_scores; i++)
        plot_add_score(plot, &step->scores[i], true, x);
    for (size_t i = 0; i < step->n_rewards; i++)
        plot_add_score(plot, &step->rewards[i], false, x);
    for (size_t i = 0; i < step->n_memory && i < 2; i++)
        plot_add_side(&plot->sides[step->memory[i].worker ? 1 : 0], x, &step->memory[i]);
}

/* Only the quote itself is special there, and doubling it does not always work, so another character replaces it. */
void plot_text(FILE *out, const char *text)
{
    fputc('\'', out);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '\'')
            fputs("\u2019", out);
        else
            fputc(c < ' ' || c == 0x7F || c == '`' ? '?' : c, out);
    }
    fputc('\'', out);
}

static void print_number(FILE *out, double value)
{
    if (isfinite(value))
        fprintf(out, " %.9g", value);
    else
        fputs(" NaN", out);
}

/* As precise as the range's ends, beyond which nothing is drawn. */
static void print_x(FILE *out, double step)
{
    fprintf(out, " %.17g", step);
}

static void print_series(FILE *out, const char *name, size_t number, const struct series *s)
{
    fprintf(out, "$%s%zu << EOD\n", name, number);
    for (size_t i = 0; i < s->n; i++) {
        print_x(out, series_x(s, i));
        print_number(out, series_y(s, i));
        fputc('\n', out);
    }
    fputs("EOD\n", out);
}

/* True if a finite value stands between two missing ones: a line alone would not show it. */
static bool has_lone_point(const struct series *s)
{
    for (size_t i = 0; i < s->n; i++) {
        const bool before = i > 0 && !isnan(series_y(s, i - 1)), after = i + 1 < s->n && !isnan(series_y(s, i + 1));
        if (!isnan(series_y(s, i)) && !before && !after)
            return true;
    }
    return false;
}

/* As much of the end as the legend has room for. */
static void print_end(FILE *out, const char *text)
{
    enum { ROOM = 24 };
    const size_t n = strlen(text);
    char end[ROOM + 1];

    if (n > ROOM) {
        snprintf(end, sizeof end, "...%s", text + n - (ROOM - 3));
        text = end;
    }
    plot_text(out, text);
}

struct curve {
    const struct series *series;
    const char *title; /* NULL: the legend does not name it */
    size_t colour;
    bool noisy; /* a value of each step: if there are many, their running mean is drawn, over them in grey */
};

/* Points to either side that a running mean of a noisy curve takes; 0: it is drawn as it is. */
static size_t smoothing_of(const struct curve *curve)
{
    enum { MANY = 100, SHARE = 50 };
    const size_t n = curve->series->n;

    return curve->noisy && n >= MANY ? n / SHARE : 0;
}

/* The running mean of the w points before and behind each, as far as there are such. */
static void print_smooth(FILE *out, const char *name, size_t number, const struct series *s, size_t w)
{
    fprintf(out, "$%smean%zu << EOD\n", name, number);
    for (size_t i = 0; i < s->n; i++) {
        const size_t first = i > w ? i - w : 0, end = i + w + 1 < s->n ? i + w + 1 : s->n;
        uint64_t n = 0;
        double sum = 0;
        for (size_t k = first; k < end; k++)
            sum += s->means[k].y, n += s->means[k].n_y;
        print_x(out, series_x(s, i));
        print_number(out, n ? sum / (double)n : NAN);
        fputc('\n', out);
    }
    fputs("EOD\n", out);
}

/* Draws a line, with points if they are few, large ones if they are very few. */
static void print_curve(FILE *out, const char *data, size_t number, const struct curve *curve)
{
    const struct series *s = curve->series;
    const double size = s->n <= 3 ? 1 : s->n <= 32 ? 0.6 : 0.4;
    const bool smooth = smoothing_of(curve) > 0;

    if (smooth)
        fprintf(out, "$%s%zu using 1:2 with lines lw 1 lc rgb '#cccccc' notitle, ", data, number);
    fprintf(out, "$%s%s%zu using 1:2 with ", data, smooth ? "mean" : "", number);
    if (s->n <= 32 || has_lone_point(s))
        fprintf(out, "linespoints pt 7 ps %g", size);
    else
        fputs("lines", out);
    fprintf(out, " lw 1.5 lc %zu", curve->colour);
    fputs(curve->title ? " title " : " notitle", out);
    if (curve->title) {
        char title[40];
        snprintf(title, sizeof title, "%s%s", curve->title, smooth ? ", running mean" : "");
        print_end(out, smooth ? title : curve->title);
    }
}

static void print_nothing(FILE *out, const char *why)
{
    fputs("set yrange [0:1]\nset label 1 ", out);
    plot_text(out, why);
    fputs(" at graph 0.5, 0.5 center\nplot NaN notitle\nunset label 1\nset yrange [*:*]\n", out);
}

static bool has_numbers(const struct series *s)
{
    return !isnan(series_most(s));
}

/* Those of the curves that have numbers, in one panel; its data are called by `data`, which no other panel has. */
static void print_curves(FILE *out, const char *data, const struct curve *curves, size_t n, const char *nothing)
{
    size_t n_drawn = 0;

    for (size_t i = 0; i < n; i++)
        if (has_numbers(curves[i].series)) {
            const size_t w = smoothing_of(&curves[i]);
            print_series(out, data, i, curves[i].series);
            if (w > 0)
                print_smooth(out, data, i, curves[i].series, w);
            n_drawn++;
        }
    if (n_drawn == 0) {
        print_nothing(out, nothing);
        return;
    }
    fputs("plot ", out);
    for (size_t i = 0; i < n; i++)
        if (has_numbers(curves[i].series)) {
            print_curve(out, data, i, &curves[i]);
            fputs(--n_drawn > 0 ? ", " : "\n", out);
        }
}

/* Curves in their own range: not one that gnuplot rounds, nor below 0 if none of them is. */
static void print_losses(FILE *out, const char *data, const char *label, const struct curve *curves, size_t n,
                         const char *nothing)
{
    double least = NAN, most = NAN;

    for (size_t i = 0; i < n; i++) {
        least = fmin(least, series_least(curves[i].series));
        most = fmax(most, series_most(curves[i].series));
    }
    const double margin = most > least ? 0.05 * (most - least) : fmax(0.05 * fabs(most), 1e-3); /* off the frame */
    const double bottom = least >= 0 ? fmax(least - margin, 0) : least - margin;
    fprintf(out, "set ylabel '%s'\n", label);
    if (!isnan(least))
        fprintf(out, "set yrange [%.9g:%.9g]\n", bottom, most + margin);
    print_curves(out, data, curves, n, nothing);
    fputs("set yrange [*:*]\n", out);
}

static void print_speed(FILE *out, const char *unit, const struct curve *curves, size_t n)
{
    fprintf(out, "set ylabel '%s/s'\nset yrange [0:*]\n", unit);
    print_curves(out, "speed", curves, n, "no step was timed");
    fputs("set yrange [*:*]\n", out);
}

static double plot_unit_of(double bytes, const char **name)
{
    static const char *const names[] = {"KiB", "MiB", "GiB", "TiB"};
    double unit = 1024;
    size_t i = 0;

    while (i < 3 && bytes >= unit * 1024)
        unit *= 1024, i++;
    *name = names[i];
    return unit;
}

/* Prints stacked categories. Column k + 2 is the sum of the first k, so category k lies between columns k + 2 and k +
 * 3; the last column is the budget. A single point is drawn as a line as long as the run, as an area needs two. */
static void print_sums(FILE *out, const char *name, const struct plot_side *side, double unit, double last)
{
    fprintf(out, "$%s << EOD\n", name);
    for (size_t i = 0; i < side->all.n + (side->all.n == 1); i++) {
        const size_t from = i < side->all.n ? i : 0;
        double sum = 0;
        print_x(out, i < side->all.n ? series_x(&side->all, i) : last);
        print_number(out, 0);
        for (size_t k = 0; k < side->n; k++) {
            sum += series_y(&side->categories[k].bytes, from);
            print_number(out, sum / unit);
        }
        print_number(out, series_y(&side->budget, from) / unit);
        fputc('\n', out);
    }
    fputs("EOD\n", out);
}

/* A budget far above the use would flatten the areas; then only the legend names it. */
static bool is_budget_drawn(const struct plot_side *side)
{
    return series_most(&side->budget) <= 3 * series_most(&side->all);
}

static void print_budget(FILE *out, const char *name, const struct plot_side *side)
{
    const double budget = series_most(&side->budget);
    char bytes[24], title[64];

    if (isnan(budget))
        return;
    snprintf(title, sizeof title, is_budget_drawn(side) ? "budget %s" : "(budget %s)",
             eps_format_bytes(bytes, (uint64_t)budget));
    if (is_budget_drawn(side))
        fprintf(out, ", $%s using 1:%zu with lines lw 2 lc rgb 'black' title ", name, side->n + 3);
    else
        fputs(", NaN with lines lw 2 lc rgb 'black' title ", out);
    plot_text(out, title);
}

/* Draws opaque bands between the sums, so that each has its legend's colour. */
static void print_memory(FILE *out, const struct plot *plot, unsigned which)
{
    static const char *const names[] = {"host", "device"};
    const struct plot_side *side = &plot->sides[which];
    const char *unit_name;

    if (side->n == 0) {
        fprintf(out, "set ylabel '%s memory'\n", names[which]);
        print_nothing(out, "not recorded by category in this run");
        return;
    }
    const double most = series_most(&side->all);
    const double unit = plot_unit_of(is_budget_drawn(side) ? fmax(most, series_most(&side->budget)) : most, &unit_name);
    fprintf(out, "set ylabel '%s memory, %s'\nset yrange [0:*]\n", names[which], unit_name);
    print_sums(out, names[which], side, unit, (double)plot->last + (plot->last == plot->first));
    for (size_t k = side->n; k-- > 0;) {
        fprintf(out, "%s$%s using 1:%zu:%zu with filledcurves fs solid 1 noborder lc %zu title ",
                k + 1 == side->n ? "plot " : ", ", names[which], k + 2, k + 3, k + 1);
        plot_text(out, side->categories[k].name);
    }
    print_budget(out, names[which], side);
    fputs("\nset yrange [*:*]\n", out);
}

/* gnuplot's own colours repeat after the eighth. */
static void print_colours(FILE *out)
{
    static const char *const colours[PLOT_RUNS] = {"4477aa", "ee6677", "228833", "ccbb44", "66ccee",
                                                   "aa3377", "999999", "ee8866", "44bb99", "bbcc33",
                                                   "aaaa00", "332288", "882255", "ddcc77"};

    for (size_t i = 0; i < sizeof colours / sizeof *colours; i++)
        fprintf(out, "set linetype %zu lc rgb '#%s'\n", i + 1, colours[i]);
    fprintf(out, "set linetype cycle %zu\n", sizeof colours / sizeof *colours);
}

/* A picture of so many panels over these steps. */
static void plot_begin(FILE *out, const char *format, int n_panels, uint64_t from, uint64_t to)
{
    const double first = (double)from, last = (double)to;
    const double margin = last - first > 1e-9 * last ? 0 : fmax(1, 1e-6 * last); /* the range must not be empty */

    fprintf(out, "set terminal %s size 1000,%d noenhanced\n",
            strcmp(format, "png") == 0 ? "pngcairo font 'sans,10'" : "svg background 'white'", 300 * n_panels);
    print_colours(out);
    fprintf(out, "set encoding utf8\nset xrange [%.17g:%.17g]\n", first - margin, last + margin);
    fputs("set key outside right top Left reverse noenhanced\nset lmargin 12\nset rmargin 27\nset grid ytics lc "
          "'#dddddd'\n"
          "set xlabel 'step'\n",
          out);
    fprintf(out, "set multiplot layout %d,1", n_panels);
}

/* ---- The panels of one run ---- */

static const struct plot_score *find_score(const struct plot *plot, const char *name)
{
    for (size_t i = 0; i < plot->n_scores; i++)
        if (strcmp(plot->scores[i].name, name) == 0)
            return &plot->scores[i];
    return NULL;
}

/* By what the run measures, as its lines do not name its task. */
static const char *loss_label(const struct plot *plot)
{
    return plot->of_images                       ? "loss, nats per image"
           : find_score(plot, "rewards/margins") ? "loss of preferences"
           : find_score(plot, "pearson")         ? "squared error"
           : find_score(plot, "accuracy")        ? "loss, nats per row"
                                                 : "loss, nats per token";
}

/* Marks the lowest held-out loss, if it is not the last one. */
static void print_best(FILE *out, const struct plot *plot)
{
    if (plot->eval_loss.n < 2 || isnan(plot->best.loss) || plot->best.step == plot->last)
        return;
    fprintf(out, "set label 2 'best: step %llu' at %.17g, %.9g point pt 6 ps 1.2 lc 2 offset 0, 1 center\n",
            (unsigned long long)plot->best.step, (double)plot->best.step, drawable(plot->best.loss));
}

static void print_loss_panel(FILE *out, const struct plot *plot)
{
    const struct curve losses[] = {{&plot->loss, "training", 1, true}, {&plot->eval_loss, "held out", 2, false}};

    print_best(out, plot);
    print_losses(out, "loss", loss_label(plot), losses, 2, "no step has a loss that is finite");
    fputs("unset label 2\n", out);
}

/* What a run is scored by, in two panels: rewards have no bounds, and the others are shares or correlations. */
static const struct {
    const char *name, *title;
    bool reward;
} scored[] = {
    {"rewards/chosen", "chosen", true},  {"rewards/rejected", "rejected", true},
    {"rewards/margins", "margin", true}, {"rewards/accuracies", "accuracy", false},
    {"accuracy", "accuracy", false},     {"f1", "F1", false},
    {"macro_f1", "macro F1", false},     {"matthews", "Matthews", false},
    {"pearson", "Pearson", false},       {"spearman", "Spearman", false},
};

struct score_panel {
    const char *data, *label;
    struct curve curves[PLOT_SCORES];
    char titles[PLOT_SCORES][32];
    size_t n;
};

static void collect_scores(struct score_panel *panel, const struct plot *plot, bool rewards)
{
    *panel = (struct score_panel){.data = rewards ? "reward" : "score",
                                  .label = rewards                       ? "reward"
                                           : find_score(plot, "pearson") ? "correlation"
                                                                         : "accuracy"};
    for (size_t k = 0; k < sizeof scored / sizeof *scored; k++)
        for (size_t i = 0; i < plot->n_scores && scored[k].reward == rewards; i++) {
            const struct plot_score *score = &plot->scores[i];
            if (strcmp(score->name, scored[k].name) != 0 || !has_numbers(&score->series))
                continue;
            snprintf(panel->titles[panel->n], sizeof *panel->titles, "%s%s", scored[k].title,
                     score->held_out ? ", held out" : "");
            panel->curves[panel->n] =
                (struct curve){&score->series, panel->titles[panel->n], panel->n + 1, !score->held_out};
            panel->n++;
        }
}

void plot_write(FILE *out, const struct plot *plot, const char *format, const char *title)
{
    struct score_panel panels[2];

    collect_scores(&panels[0], plot, true);
    collect_scores(&panels[1], plot, false);
    plot_begin(out, format, 3 + (panels[0].n > 0) + (panels[1].n > 0), plot->first - plot->has_before, plot->last);
    fputs(" title ", out);
    plot_text(out, title);
    fputs(" noenhanced\n", out);
    print_loss_panel(out, plot);
    for (int i = 0; i < 2; i++)
        if (panels[i].n > 0)
            print_losses(out, panels[i].data, panels[i].label, panels[i].curves, panels[i].n, "");
    print_memory(out, plot, 0);
    print_memory(out, plot, 1);
    fputs("unset multiplot\n", out);
}

void plot_compare(FILE *out, const struct plot_titled *runs, size_t n, const char *format)
{
    uint64_t first = runs->plot->first, last = runs->plot->last;
    struct curve curves[3][PLOT_RUNS];
    bool of_images = true;

    assert(n <= PLOT_RUNS);
    for (size_t i = 0; i < n; i++) {
        const struct plot *plot = runs[i].plot;
        of_images = of_images && plot->of_images;
        first = plot->first - plot->has_before < first ? plot->first - plot->has_before : first;
        last = plot->last > last ? plot->last : last;
        curves[0][i] = (struct curve){&plot->eval_loss, runs[i].title, i + 1, false};
        curves[1][i] = (struct curve){&plot->loss, runs[i].title, i + 1, false};
        curves[2][i] = (struct curve){&plot->rate, runs[i].title, i + 1, false};
    }
    plot_begin(out, format, 3, first, last);
    fputc('\n', out);
    print_losses(out, "held_out", of_images ? "held-out loss, nats per image" : "held-out loss, nats per token",
                 curves[0], n, "no run was evaluated");
    print_losses(out, "loss", of_images ? "training loss, nats per image" : "training loss, nats per token", curves[1],
                 n, "no step has a loss that is finite");
    print_speed(out, of_images ? "images" : "tokens", curves[2], n);
    fputs("unset multiplot\n", out);
}
