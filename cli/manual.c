/* manual.c - `kakeya help --man`: what the verbs are and every option they take comes from their
 * tables, the rest from docs/kakeya.1.in, which the build embeds.
 *
 * Lines of that file are printed as they are, but for three:
 *   @VERBS        the verbs, with a line on each
 *   @OPTIONS      a section for each verb, after those for groups of options that several share
 *   @NOTES NAME   what follows, up to the next such line, goes to the end of NAME's part of the
 *                 sections; all of these stand at the end of the file */
#include "cli/manual.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/output.h"
#include "cli/verbs.h"
#include "kakeya.h"
#include "manual_text.h" /* written by the build: manual_text, the bytes of docs/kakeya.1.in */

enum { SHARED_BY = 3, MOST_GROUPS = 16 };

/* ---- roff -------------------------------------------------------------------------------- */

static bool is_flag_character(char c) { return isalnum((unsigned char)c) || c == '-'; }

static void put_character(char c) {
    if (c == '-')
        printf("\\-");
    else if (c == '\\')
        printf("\\e");
    else
        putchar(c);
}

/* Text in roff: options in bold and, where asked for, words in capitals in italics.  A line does
 * not begin with what would be a request. */
static void put_text(const char *text, bool capitals) {
    char before = '\n';
    while (*text) {
        const bool begins = before == '\n' || strchr(" [(|,'", before);
        size_t n = 0;
        if (begins && text[0] == '-' && (text[1] == '-' || isalpha((unsigned char)text[1])))
            while (is_flag_character(text[n])) n++;
        size_t upper = 0;
        while (capitals && begins && isupper((unsigned char)text[upper])) upper++;
        if (n || upper) printf(n ? "\\fB" : "\\fI");
        if (before == '\n' && (*text == '.' || *text == '\'')) printf("\\&");
        for (size_t i = 0; i < (n ? n : upper ? upper : 1); i++) put_character(text[i]);
        if (n || upper) printf("\\fR");
        text += n ? n : upper ? upper : 1;
        before = text[-1];
    }
}

/* Paragraphs with an empty line between. */
static void put_paragraphs(const char *text) {
    for (const char *gap; (gap = strstr(text, "\n\n")); text = gap + 2) {
        char part[2000];
        snprintf(part, sizeof part, "%.*s", (int)(gap - text), text);
        put_text(part, false);
        printf("\n.PP\n");
    }
    put_text(text, false);
    printf("\n");
}

static void put_upper(const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) putchar(toupper((unsigned char)text[i]));
}

static void put_option(const option *o) {
    printf(".TP\n");
    if (o->brief) printf("\\fB\\-%s\\fR, ", o->brief);
    for (size_t i = 0; options_name(o, i); i++) {
        char name[60];
        snprintf(name, sizeof name, "--%s", options_name(o, i));
        if (i) printf(", ");
        put_text(name, false);
    }
    if (o->kind != OPT_FLAG) {
        printf(o->alone ? " [\\fI" : " \\fI");
        for (const char *c = o->arg; *c; c++) put_character(*c);
        printf(o->alone ? "\\fR]" : "\\fR");
    }
    printf("\n");
    put_text(options_describe(o).text, false);
    printf("\n");
}

/* ---- groups of options ------------------------------------------------------------------- */

typedef struct {
    const char *heading; /* "": none */
    const option *option;
    size_t n;
} group;

/* The i-th group of a verb; without options after the last. */
static group group_at(const verb *v, size_t i) {
    group g = {"", NULL, 0};
    for (size_t k = 0; k < v->n_options; k++) {
        const option *o = &v->options[k];
        if (o->kind == OPT_HEADING && g.n && i-- == 0) return g;
        if (o->kind == OPT_HEADING)
            g = (group){o->name, o + 1, 0};
        else if (g.n++ == 0)
            g.option = o;
    }
    return i == 0 ? g : (group){"", NULL, 0};
}

static bool same_option(const option *a, const option *b) {
    return strcmp(a->name, b->name) == 0 &&
           strcmp(a->arg ? a->arg : "", b->arg ? b->arg : "") == 0 &&
           strcmp(a->brief ? a->brief : "", b->brief ? b->brief : "") == 0 &&
           strcmp(options_describe(a).text, options_describe(b).text) == 0;
}

static bool same_group(const group *a, const group *b) {
    if (a->n != b->n || strcmp(a->heading, b->heading) != 0) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!same_option(&a->option[i], &b->option[i])) return false;
    return true;
}

static bool has_group(const verb *v, const group *g) {
    for (size_t i = 0; i < MOST_GROUPS; i++) {
        const group other = group_at(v, i);
        if (other.n && same_group(&other, g)) return true;
    }
    return false;
}

static size_t users(const group *g) {
    size_t n = 0;
    for (size_t i = 0; verbs_leaf(i); i++) n += has_group(verbs_leaf(i), g);
    return n;
}

/* The group that stands in a section of its own under this heading: the first that enough verbs
 * have. */
static group shared_group(const char *heading) {
    for (size_t i = 0; verbs_leaf(i); i++)
        for (size_t k = 0; k < MOST_GROUPS; k++) {
            const group g = group_at(verbs_leaf(i), k);
            if (g.n && *heading && strcmp(g.heading, heading) == 0 && users(&g) >= SHARED_BY)
                return g;
        }
    return (group){"", NULL, 0};
}

static bool is_shared(const group *g) {
    const group shared = shared_group(g->heading);
    return shared.n && same_group(&shared, g);
}

/* "Drafting (changes the speed)" becomes DRAFTING OPTIONS. */
static void put_title(const group *g) {
    const char *bracket = strstr(g->heading, " (");
    put_upper(g->heading, bracket ? (size_t)(bracket - g->heading) : strlen(g->heading));
    printf(" OPTIONS");
}

static void put_shared_group(const group *g) {
    printf(".SH ");
    put_title(g);
    printf("\nOf");
    size_t left = users(g);
    for (size_t i = 0; verbs_leaf(i); i++) {
        if (!has_group(verbs_leaf(i), g)) continue;
        left--;
        printf(" \\fB%s\\fR%s", verbs_leaf(i)->name, left > 1 ? "," : left == 1 ? " and" : ".\n");
    }
    for (size_t i = 0; i < g->n; i++) put_option(&g->option[i]);
}

/* Each where the first verb that has it comes. */
static void put_shared_groups(void) {
    for (size_t i = 0; verbs_leaf(i); i++)
        for (size_t k = 0; k < MOST_GROUPS; k++) {
            const group g = group_at(verbs_leaf(i), k);
            bool before = false;
            if (!g.n || !is_shared(&g)) continue;
            for (size_t j = 0; j < i; j++) before |= has_group(verbs_leaf(j), &g);
            if (!before) put_shared_group(&g);
        }
}

/* ---- verbs ------------------------------------------------------------------------------- */

static const char *line_of(const char *at, size_t *len) {
    const char *end = (const char *)manual_text + sizeof manual_text - 1;
    const char *newline = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
    *len = newline ? (size_t)(newline - at) : 0;
    return newline ? newline + 1 : NULL;
}

/* The name of an "@NOTES NAME" line, or NULL. */
static const char *notes_name(const char *line, size_t len, size_t *name_len) {
    static const char word[] = "@NOTES ";
    if (len < sizeof word || strncmp(line, word, sizeof word - 1) != 0) return NULL;
    *name_len = len - (sizeof word - 1);
    return line + sizeof word - 1;
}

static void put_notes(const char *name) {
    size_t len, name_len;
    bool inside = false;
    for (const char *at = (const char *)manual_text, *next; (next = line_of(at, &len)); at = next) {
        const char *of = notes_name(at, len, &name_len);
        if (of)
            inside = name_len == strlen(name) && strncmp(of, name, name_len) == 0;
        else if (inside)
            printf("%.*s\n", (int)len, at);
    }
}

static void put_examples(const char *examples) {
    printf(".PP\nExamples:\n.PP\n.RS 4\n.nf\n");
    for (const char *at = examples; *at;) {
        const size_t len = strcspn(at, "\n"), skip = strspn(at, " ") < 2 ? 0 : 2;
        printf("\\&");
        for (size_t i = skip; i < len; i++) put_character(at[i]);
        printf("\n");
        at += len + (at[len] == '\n');
    }
    printf(".fi\n.RE\n");
}

static void put_groups(const verb *v) {
    bool also = false;
    for (size_t k = 0; k < MOST_GROUPS; k++) {
        const group g = group_at(v, k);
        if (!g.n || is_shared(&g)) continue;
        if (*g.heading && strcmp(g.heading, "Options") != 0) {
            printf(".PP\n");
            put_text(g.heading, false);
            printf(":\n");
        }
        for (size_t i = 0; i < g.n; i++) put_option(&g.option[i]);
    }
    for (size_t k = 0; k < MOST_GROUPS; k++) {
        const group g = group_at(v, k);
        if (!g.n || !is_shared(&g)) continue;
        printf(also ? ", " : ".PP\nAlso: ");
        put_title(&g);
        also = true;
    }
    if (also) printf(".\n");
}

static void put_verb(const verb *v) {
    printf("\\fBkakeya %s\\fR ", v->name);
    put_text(v->usage, true);
    printf("\n.PP\n");
    put_paragraphs(v->about);
    put_groups(v);
    put_notes(v->name);
    put_examples(v->examples);
}

static void put_sections(void) {
    put_shared_groups();
    for (size_t i = 0; verbs_at(i); i++) {
        const verb *v = verbs_at(i);
        printf(".SH ");
        put_upper(v->name, strlen(v->name));
        printf("\n");
        if (v->n_kinds) put_paragraphs(v->about);
        if (v->n_kinds) put_notes(v->name);
        for (size_t k = 0; k < v->n_kinds; k++) {
            printf(".SS %s\n", v->kinds[k]->name);
            put_verb(v->kinds[k]);
        }
        if (!v->n_kinds) put_verb(v);
    }
}

static void put_verbs(void) {
    for (size_t i = 0; verbs_at(i); i++) {
        printf(".TP\n.B %s\n", verbs_at(i)->name);
        put_text(verbs_at(i)->summary, false);
        printf(verbs_at(i)->n_kinds ? ";\n" : "\n");
        for (size_t k = 0; k < verbs_at(i)->n_kinds; k++)
            printf("%s\\fB%s\\fR%s", k ? " " : "kinds: ", options_kind_name(verbs_at(i), k),
                   k + 1 < verbs_at(i)->n_kinds ? "," : "\n");
    }
    printf(".TP\n.B help\nsay more about a verb or, with \\fB\\-\\-man\\fR, print this page\n");
}

/* ---- the page ---------------------------------------------------------------------------- */

static bool is_known(const char *name, size_t len) {
    for (size_t i = 0; verbs_at(i); i++)
        if (strlen(verbs_at(i)->name) == len && strncmp(verbs_at(i)->name, name, len) == 0)
            return true;
    for (size_t i = 0; verbs_leaf(i); i++)
        if (strlen(verbs_leaf(i)->name) == len && strncmp(verbs_leaf(i)->name, name, len) == 0)
            return true;
    return false;
}

/* A line of the file before the notes. */
static bool put_line(const char *line, size_t len) {
    if (len == 6 && strncmp(line, "@VERBS", len) == 0)
        put_verbs();
    else if (len == 8 && strncmp(line, "@OPTIONS", len) == 0)
        put_sections();
    else if (len && line[0] == '@')
        return false;
    else
        printf("%.*s\n", (int)len, line);
    return true;
}

int manual_print(void) {
    size_t len, name_len;
    bool notes = false;
    printf(".TH KAKEYA 1 \"\" \"kakeya %s\" \"User Commands\"\n", KK_VERSION);
    for (const char *at = (const char *)manual_text, *next; (next = line_of(at, &len)); at = next) {
        const char *of = notes_name(at, len, &name_len);
        notes |= of != NULL;
        if ((of && !is_known(of, name_len)) || (!notes && !put_line(at, len))) {
            char what[200];
            snprintf(what, sizeof what, "the manual page has a line '%.*s'", (int)len, at);
            return output_failed(what, NULL);
        }
    }
    return EXIT_DONE;
}
