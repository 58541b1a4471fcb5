/* cmd_completion.c - `kakeya completion SHELL`: prints a completion script, made from the option
 * tables, so that it knows every verb, kind, option and word to choose from. */
#include <stdio.h>
#include <string.h>

#include "cli/verbs.h"

/* ---- what values are --------------------------------------------------------------------- */

typedef enum { VALUE_NONE, VALUE_TEXT, VALUE_FILE, VALUE_WORDS, VALUE_CHAT } value_kind;

/* Examples of values that are too many to list; of one verb, or of all. */
static const struct {
    const char *verb, *option, *words;
} examples[] = {
    {NULL, "synthetic",
     "26b-a4b:q4_0 26b-a4b:q4_k_m 26b-a4b:bf16 31b:q4_0 e2b:q4_0 e4b:q4_0 tiny:f32"},
    {"bench", "arms", "plain plain,dflash plain,ngram plain,dflash,ngram plain,dflash,ngram,auto"},
    {NULL, "set", "code chat needle json edit prose"},
    {"bench", "policies", "all exact,window exact,restored"},
    {"bench", "accept-trace", "geom:0.744:1"},
    {"bench", "rows", "none 1,2,4,8,16"},
    {NULL, "isa", "avx512 avx2 neon reference"},
};

static option_text words_of(const verb *v, const option *o) {
    option_text words = options_choices(o);
    for (size_t i = 0; !*words.text && i < OPTION_COUNT(examples); i++)
        if (strcmp(examples[i].option, o->name) == 0 &&
            (!examples[i].verb || strcmp(examples[i].verb, v->name) == 0))
            snprintf(words.text, sizeof words.text, "%s", examples[i].words);
    return words;
}

static value_kind value_of(const verb *v, const option *o) {
    static const char *const files[] = {"FILE", "DIR", "PATH", "MODEL", "DRAFTER"};
    if (o->kind == OPT_FLAG) return VALUE_NONE;
    if (*words_of(v, o).text) return VALUE_WORDS;
    if (strcmp(o->name, "load") == 0) return VALUE_CHAT;
    for (size_t i = 0; i < OPTION_COUNT(files); i++)
        if (strcmp(o->arg, files[i]) == 0) return VALUE_FILE;
    return VALUE_TEXT;
}

/* Words of a verb that are not options: "sessions", "files", or "" for none. */
static const char *words_kind(const verb *v) {
    if (v->max_words == 0 || v == &verb_completion || strncmp(v->name, "bridge ", 7) == 0)
        return "";
    return strncmp(v->name, "session ", 8) == 0 ? "sessions" : "files";
}

/* A name that an option goes by, with its dashes: the short one first; "" after the last. */
typedef struct {
    char text[64];
} spelling;

static spelling spelled(const option *o, size_t i) {
    spelling s = {""};
    if (o->brief && i == 0) {
        snprintf(s.text, sizeof s.text, "-%s", o->brief);
        return s;
    }
    const char *name = options_name(o, o->brief ? i - 1 : i);
    if (name) snprintf(s.text, sizeof s.text, "--%s", name);
    return s;
}

/* The first clause of a help text: what a menu has space for. */
static option_text brief_help(const option *o) {
    static const char *const ends[] = {"; ", ": ", " (", ".  ", ", as in "};
    option_text help = {""};
    snprintf(help.text, sizeof help.text, "%s", o->help);
    for (size_t i = 0; i < OPTION_COUNT(ends); i++) {
        char *at = strstr(help.text, ends[i]);
        if (at && at > help.text + 8) *at = 0;
    }
    return help;
}

/* ---- bash -------------------------------------------------------------------------------- */

/* NAME='spellings of the options whose values are of this kind'; flags: all options. */
static void bash_list(const verb *v, const char *name, bool all, value_kind kind) {
    bool any = false;
    for (size_t i = 0; i < v->n_options; i++) {
        const option *o = &v->options[i];
        if (o->kind == OPT_HEADING || (!all && value_of(v, o) != kind)) continue;
        for (size_t k = 0; *spelled(o, k).text; k++, any = true)
            printf(any ? " %s" : "        %s%s", any ? spelled(o, k).text : name,
                   any ? "" : spelled(o, k).text);
    }
    if (any) printf("'\n");
}

static void bash_verb(const verb *v) {
    printf("    '%s')\n", v->name);
    bash_list(v, "options='", true, VALUE_NONE);
    bash_list(v, "files='", false, VALUE_FILE);
    bash_list(v, "texts='", false, VALUE_TEXT);
    bash_list(v, "chats='", false, VALUE_CHAT);
    if (*words_kind(v)) printf("        takes=%s most=%d\n", words_kind(v), v->max_words);
    printf("        ;;\n");
}

static void bash_words(const verb *v) {
    for (size_t i = 0; i < v->n_options; i++) {
        const option *o = &v->options[i];
        if (o->kind == OPT_HEADING || value_of(v, o) != VALUE_WORDS) continue;
        printf("    ");
        for (size_t k = 0; *spelled(o, k).text; k++)
            printf("%s'%s:%s'", k ? " | " : "", v->name, spelled(o, k).text);
        printf(") echo '%s' ;;\n", words_of(v, o).text);
    }
}

static void bash_tables(void) {
    printf("# The verbs, and the kinds of those that have some.\n"
           "_kakeya_verbs='");
    for (size_t i = 0; verbs_at(i); i++) printf("%s ", verbs_at(i)->name);
    printf("help'\n_kakeya_kinds() {\n    case $1 in\n");
    for (size_t i = 0; verbs_at(i); i++) {
        const verb *v = verbs_at(i);
        if (!v->n_kinds) continue;
        printf("    %s) echo '", v->name);
        for (size_t k = 0; k < v->n_kinds; k++)
            printf("%s%s", k ? " " : "", options_kind_name(v, k));
        printf("' ;;\n");
    }
    printf(
        "    esac\n}\n\n"
        "# Options of a verb or kind, and those among them whose value is a file, any text, or a\n"
        "# saved conversation.\n"
        "_kakeya_options() {\n    case $1 in\n");
    for (size_t i = 0; verbs_leaf(i); i++) bash_verb(verbs_leaf(i));
    printf("    esac\n}\n\n"
           "# The words that an option of a verb or kind takes.\n"
           "_kakeya_words() {\n    case $1:$2 in\n");
    for (size_t i = 0; verbs_leaf(i); i++) bash_words(verbs_leaf(i));
    printf("    'completion:') echo 'bash zsh fish' ;;\n    esac\n}\n\n");
}

static const char bash_rest[] =
    "# Names of what is saved, by the end of its files' names.\n"
    "_kakeya_saved() {\n"
    "    (cd \"${XDG_STATE_HOME:-$HOME/.local/state}/kakeya/sessions\" 2>/dev/null || return\n"
    "        for file in *\"$1\"; do [ -e \"$file\" ] && printf '%s\\n' \"${file%\"$1\"}\"; done)\n"
    "}\n"
    "\n"
    "_kakeya_offer() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$2\"); }\n"
    "_kakeya_files() {\n"
    "    compopt -o filenames 2>/dev/null\n"
    "    mapfile -t COMPREPLY < <(compgen -f -- \"$1\")\n"
    "}\n"
    "\n"
    "_kakeya() {\n"
    "    local at=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} kinds prev "
    "words\n"
    "    local options='' files='' texts='' chats='' takes='' most=0\n"
    "    COMPREPLY=()\n"
    "    # Bash cuts a line at '=' and ':' too.  A value is looked at whole.\n"
    "    while [ \"$at\" -gt 1 ] && { [[ $cur == :* ]] || [[ ${COMP_WORDS[at - 1]} == *: ]]; }; "
    "do\n"
    "        at=$((at - 1)) cur=${COMP_WORDS[at]}$cur\n"
    "    done\n"
    "    prev=${COMP_WORDS[at - 1]}\n"
    "    [ \"$cur\" = = ] && cur=''\n"
    "    [ \"$prev\" = = ] && prev=${COMP_WORDS[at - 2]}\n"
    "    if [ \"$at\" -eq 1 ]; then\n"
    "        _kakeya_offer \"$_kakeya_verbs --help --version\" \"$cur\"\n"
    "        return\n"
    "    fi\n"
    "    kinds=$(_kakeya_kinds \"$verb\")\n"
    "    if [ \"$verb\" = help ]; then\n"
    "        [ \"$at\" -eq 2 ] && _kakeya_offer \"$_kakeya_verbs --man\" \"$cur\"\n"
    "        [ \"$at\" -eq 3 ] && _kakeya_offer \"$(_kakeya_kinds \"$prev\")\" \"$cur\"\n"
    "        return\n"
    "    elif [ -n \"$kinds\" ] && [ \"$at\" -eq 2 ]; then\n"
    "        _kakeya_offer \"$kinds --help\" \"$cur\"\n"
    "        return\n"
    "    elif [ -n \"$kinds\" ]; then\n"
    "        verb=\"$verb ${COMP_WORDS[2]}\"\n"
    "        [ \"$verb\" = 'session list' ] && verb='session ls'\n"
    "    fi\n"
    "    _kakeya_options \"$verb\"\n"
    "    words=$(_kakeya_words \"$verb\" \"$prev\")\n"
    "    if [ -n \"$words\" ]; then\n"
    "        _kakeya_offer \"$words\" \"$cur\"\n"
    "        COMPREPLY=(\"${COMPREPLY[@]#\"${cur%\"${cur##*:}\"}\"}\")\n"
    "    elif [[ \" $files \" == *\" $prev \"* ]]; then\n"
    "        _kakeya_files \"$cur\"\n"
    "    elif [[ \" $chats \" == *\" $prev \"* ]]; then\n"
    "        _kakeya_offer \"$(_kakeya_saved .chat.json)\" \"$cur\"\n"
    "    elif [[ \" $texts \" == *\" $prev \"* ]]; then\n"
    "        return\n"
    "    elif [[ $cur != -* && $takes = files ]]; then\n"
    "        _kakeya_files \"$cur\"\n"
    "    elif [[ $cur != -* && $takes = sessions ]] && [[ $at -eq 3 || $most -gt 1 ]]; then\n"
    "        _kakeya_offer \"$(_kakeya_saved .kks)\" \"$cur\"\n"
    "    elif [ \"$verb\" = completion ]; then\n"
    "        _kakeya_offer \"$(_kakeya_words completion '') --help\" \"$cur\"\n"
    "    else\n"
    "        _kakeya_offer \"$options --help\" \"$cur\"\n"
    "    fi\n"
    "}\n"
    "\n"
    "complete -F _kakeya kakeya\n";

static void print_bash(void) {
    printf("# bash completion for kakeya, printed by `kakeya completion bash`\n\n");
    bash_tables();
    fputs(bash_rest, stdout);
}

/* ---- zsh --------------------------------------------------------------------------------- */

/* Text inside of single quotes, with a backslash before the characters of special. */
static void put_quoted(const char *text, const char *special) {
    for (; *text; text++) {
        if (*text == '\'')
            printf("'\\''");
        else
            printf(strchr(special, *text) ? "\\%c" : "%c", *text);
    }
}

static void zsh_option(const verb *v, const option *o) {
    const bool again = o->kind == OPT_WORDS, many = *spelled(o, 1).text != 0;
    printf("            '%s", again ? "*" : "");
    for (size_t k = 0; many && !again && *spelled(o, k).text; k++)
        printf("%s%s", k ? " " : "(", spelled(o, k).text);
    if (many) printf(again ? "'{" : ")'{");
    for (size_t k = 0; *spelled(o, k).text; k++) printf("%s%s", k ? "," : "", spelled(o, k).text);
    printf(many ? "}'[" : "[");
    put_quoted(brief_help(o).text, "[]\\");
    printf("]");
    if (o->kind != OPT_FLAG) {
        printf(o->alone ? "::" : ":");
        put_quoted(o->arg, ":\\");
        printf(":");
    }
    if (value_of(v, o) == VALUE_FILE) printf("_files");
    if (value_of(v, o) == VALUE_CHAT) printf("_kakeya_chats");
    if (value_of(v, o) == VALUE_WORDS) {
        printf("(");
        put_quoted(words_of(v, o).text, ":\\");
        printf(")");
    }
    printf("' \\\n");
}

static void zsh_verb(const verb *v) {
    printf("    '%s')\n        _arguments \\\n", v->name);
    for (size_t i = 0; i < v->n_options; i++)
        if (v->options[i].kind != OPT_HEADING) zsh_option(v, &v->options[i]);
    if (v == &verb_completion) printf("            '1:shell:(bash zsh fish)' \\\n");
    if (*words_kind(v))
        printf("            '%s:%s:%s' \\\n", v->max_words > 1 ? "*" : "1", words_kind(v),
               strcmp(words_kind(v), "sessions") == 0 ? "_kakeya_sessions" : "_files");
    printf("            '(-h --help)'{-h,--help}'[show help]'\n        ;;\n");
}

static void zsh_names(const char *array, const char *name, const verb *v) {
    printf("%s'%s:", array, name);
    put_quoted(v->summary, ":\\");
    printf("'\n");
}

static void zsh_kinds(const verb *v) {
    printf("    %s)\n        if (( CURRENT == 2 )); then\n            kinds=(\n", v->name);
    for (size_t k = 0; k < v->n_kinds; k++)
        zsh_names("                ", options_kind_name(v, k), v->kinds[k]);
    printf("            )\n            _describe kind kinds\n            return\n        fi\n"
           "        verb=\"$verb $words[2]\"\n        shift words\n        (( CURRENT-- ))\n"
           "        ;;\n");
}

static void print_zsh(void) {
    printf("#compdef kakeya\n# zsh completion for kakeya, printed by `kakeya completion zsh`\n\n"
           "_kakeya_sessions() {\n"
           "    local -a names=(${XDG_STATE_HOME:-$HOME/.local/state}/kakeya/sessions/"
           "*.kks(N:t:r))\n"
           "    compadd -a names\n    _files -g '*.kks'\n}\n\n"
           "_kakeya_chats() {\n"
           "    local -a names=(${XDG_STATE_HOME:-$HOME/.local/state}/kakeya/sessions/"
           "*.chat.json(N:t:r:r))\n"
           "    compadd -a names\n}\n\n"
           "_kakeya() {\n    local -a verbs kinds\n    verbs=(\n");
    for (size_t i = 0; verbs_at(i); i++) zsh_names("        ", verbs_at(i)->name, verbs_at(i));
    printf("        'help:say more about a verb'\n    )\n"
           "    if (( CURRENT == 2 )); then\n        _describe verb verbs\n        return\n    fi\n"
           "    local verb=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $verb in\n"
           "    help)\n        (( CURRENT == 2 )) && _describe verb verbs\n        return\n"
           "        ;;\n");
    for (size_t i = 0; verbs_at(i); i++)
        if (verbs_at(i)->n_kinds) zsh_kinds(verbs_at(i));
    printf("    esac\n    [[ $verb == 'session list' ]] && verb='session ls'\n    case $verb in\n");
    for (size_t i = 0; verbs_leaf(i); i++) zsh_verb(verbs_leaf(i));
    printf("    esac\n}\n\n"
           "if [ \"$funcstack[1]\" = _kakeya ]; then\n    _kakeya \"$@\"\nelse\n"
           "    compdef _kakeya kakeya\nfi\n");
}

/* ---- fish -------------------------------------------------------------------------------- */

static void fish_option(const verb *v, const option *o) {
    printf("complete -c kakeya -n '__kakeya_of %s'", v->name);
    /* fish calls a name of several letters behind one dash an old option. */
    if (o->brief) printf(" -%c %s", o->brief[1] ? 'o' : 's', o->brief);
    for (size_t i = 0; options_name(o, i); i++) printf(" -l %s", options_name(o, i));
    switch (value_of(v, o)) {
    case VALUE_NONE: break;
    case VALUE_FILE: printf(" -rF"); break;
    case VALUE_CHAT: printf(" -x -a '(__kakeya_saved .chat.json)'"); break;
    case VALUE_WORDS: printf(o->alone ? " -a '%s'" : " -x -a '%s'", words_of(v, o).text); break;
    case VALUE_TEXT: printf(" -x"); break;
    }
    printf(" -d '");
    for (const char *c = brief_help(o).text; *c; c++)
        printf(*c == '\'' || *c == '\\' ? "\\%c" : "%c", *c);
    printf("'\n");
}

static void fish_name(const char *condition, const char *name, const verb *v) {
    printf("complete -c kakeya -n '%s' -a %s -d '", condition, name);
    for (const char *c = v->summary; *c; c++) printf(*c == '\'' || *c == '\\' ? "\\%c" : "%c", *c);
    printf("'\n");
}

static void fish_verb(const verb *v) {
    printf("\n# %s\n", v->name);
    for (size_t i = 0; i < v->n_options; i++)
        if (v->options[i].kind != OPT_HEADING) fish_option(v, &v->options[i]);
    if (v == &verb_completion)
        printf("complete -c kakeya -n '__kakeya_of completion' -a 'bash zsh fish'\n");
    if (strcmp(words_kind(v), "files") == 0)
        printf("complete -c kakeya -n '__kakeya_of %s' -F\n", v->name);
    if (strcmp(words_kind(v), "sessions") == 0)
        printf("complete -c kakeya -n '__kakeya_of %s' -a '(__kakeya_saved .kks)' -d session\n",
               v->name);
}

static void print_fish(void) {
    printf("# fish completion for kakeya, printed by `kakeya completion fish`\n\n"
           "# Whether the line names this verb, and this kind where one is given.\n"
           "function __kakeya_of\n    set -l words (commandline -opc)\n"
           "    test \"$words[2]\" = \"$argv[1]\"; or return 1\n"
           "    test (count $argv) -eq 1; or test \"$words[3]\" = \"$argv[2]\"\nend\n\n"
           "# Whether the word at this place, counted from 1, is the next.\n"
           "function __kakeya_at\n    test (count (commandline -opc)) -eq $argv[1]\nend\n\n"
           "# Names of what is saved, by the end of its files' names.\n"
           "function __kakeya_saved\n    set -l state $XDG_STATE_HOME\n"
           "    test -n \"$state\"; or set state ~/.local/state\n"
           "    for file in $state/kakeya/sessions/*$argv[1]\n"
           "        string replace -r '.*/' '' -- $file | string replace -- $argv[1] ''\n"
           "    end\nend\n\n"
           "complete -c kakeya -f\ncomplete -c kakeya -s h -l help -d 'show help'\n");
    for (size_t i = 0; verbs_at(i); i++) {
        const verb *v = verbs_at(i);
        char here[80];
        fish_name("__kakeya_at 1", v->name, v);
        printf("complete -c kakeya -n '__kakeya_of help; and __kakeya_at 2' -a %s\n", v->name);
        snprintf(here, sizeof here, "__kakeya_of %s; and __kakeya_at 2", v->name);
        for (size_t k = 0; k < v->n_kinds; k++)
            fish_name(here, options_kind_name(v, k), v->kinds[k]);
    }
    printf("complete -c kakeya -n '__kakeya_at 1' -a help -d 'say more about a verb'\n");
    for (size_t i = 0; verbs_leaf(i); i++) fish_verb(verbs_leaf(i));
}

/* ---- the verb ---------------------------------------------------------------------------- */

static int run(int argc, char **argv) {
    static const struct {
        const char *shell;
        void (*print)(void);
    } scripts[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    option_words words;
    int code;
    if (!options_parse(&verb_completion, argc, argv, NULL, &words, &code)) return code;
    for (size_t i = 0; i < OPTION_COUNT(scripts); i++) {
        if (strcmp(words.word[0], scripts[i].shell) != 0) continue;
        scripts[i].print();
        return EXIT_DONE;
    }
    return options_wrong(&verb_completion, "there is no shell '%s'; it is bash, zsh or fish",
                         words.word[0]);
}

const verb verb_completion = {
    .name = "completion",
    .summary = "print what completes a command line: for bash, zsh or fish",
    .usage = "bash | zsh | fish",
    .about =
        "Prints a script that has the shell complete verbs, options, their values and the names\n"
        "of saved sessions.",
    .examples = "  . <(kakeya completion bash)\n"
                "  kakeya completion fish >~/.config/fish/completions/kakeya.fish\n",
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
