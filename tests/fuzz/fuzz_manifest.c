/* fuzz_manifest.c - any bytes as a manifest of the bridge, and as a runner's configuration: refused
 * with a sentence, or values within their bounds and command lines without a stray character. */
#include <stdlib.h>
#include <string.h>

#include "bridge/manifest.h"
#include "bridge/runner_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds) {
    if (!holds) abort();
}

static void check_plan(const kk_manifest *m) {
    static const char *const cases[] = {"/case"};
    const kk_preset_paths paths = {.model = "/m", .reports = "/r", .cases = cases, .n_cases = 1};
    kk_plan plan;
    need(kk_plan_make(&plan, m->preset, m->value, "/k", &paths, m->nonce, NULL) == KK_OK);
    for (size_t i = 0; i < plan.n; i++)
        for (size_t k = 0; k < plan.command[i].n; k++) {
            const char *word = plan.command[i].word[k];
            need(*word && !strpbrk(word, "{}@?;|&$`<>*'\"\\ \n"));
        }
    kk_plan_free(&plan);
}

static void check_manifest(const kk_manifest *m) {
    char branch[512];
    kk_bytes text = {0};
    kk_manifest again;
    need(m->version == 1 || m->version == 2);
    need(kk_manifest_branch(m, "p/", "", branch, sizeof branch));
    need(kk_manifest_on_branch(m, "p/", branch));
    need(kk_manifest_write(m, &text, NULL) == KK_OK);
    need(kk_manifest_parse(&again, text.data, text.n, NULL) == KK_OK);
    need(memcmp(again.value, m->value, sizeof m->value) == 0);
    need(strcmp(again.nonce, m->nonce) == 0 && strcmp(again.ref, m->ref) == 0);
    kk_bytes_free(&text);
    check_plan(m);
}

static void check_config(const kk_runner_config *c) {
    need(kk_manifest_name_ok(c->name) && c->prefix[0] && c->paths.n_cases <= KK_RUNNER_CASES);
    need(c->most_minutes > 0 && c->output_bytes >= 1024 && c->disk_bytes >= 1024);
    need(!c->paths.model[0] || c->paths.model[0] == '/');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kk_manifest m;
    kk_runner_config c;
    kk_err err = {.msg = ""};
    if (kk_manifest_parse(&m, (const char *)data, size, &err) == KK_OK)
        check_manifest(&m);
    else
        need(err.code == KK_EINVAL && err.msg[0]);
    if (kk_runner_config_parse(&c, (const char *)data, size, &err) == KK_OK) check_config(&c);
    kk_runner_config_release(&c);
    return 0;
}
