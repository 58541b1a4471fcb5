/* sshsig.c - see sshsig.h. */
#include "bridge/sshsig.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bridge/folder.h"
#include "core/error.h"

static const double keygen_timeout_s = 60; /* an agent may ask its user */

static kk_status keygen(const char *const *argv, const char *const *env, const kk_bytes *in,
                        kk_process_result *r, kk_err *err) {
    const kk_process p = {.argv = argv,
                          .env = env,
                          .input = in ? kk_bytes_text(in) : NULL,
                          .input_len = in ? in->n : 0,
                          .timeout_s = keygen_timeout_s,
                          .most_output = 1 << 20};
    return kk_process_run(&p, r, err);
}

static bool went_well(const kk_process_result *r) { return r->end == KK_ENDED_EXIT && !r->code; }

static kk_status said(const char *what, const kk_process_result *r, kk_status code, kk_err *err) {
    char line[140];
    kk_process_last_line(r->err.n ? &r->err : &r->out, line, sizeof line);
    return kk_fail(err, code, "%s: %s", what, line[0] ? line : kk_process_describe(r).text);
}

kk_status kk_sshsig_sign(const char *key, const char *const *env, const kk_bytes *message,
                         kk_bytes *signature, kk_err *err) {
    const char *const argv[] = {"ssh-keygen",        "-q", "-Y", "sign", "-n",
                                KK_SSHSIG_NAMESPACE, "-f", key,  NULL};
    kk_process_result r = {.code = 0};
    kk_status st = keygen(argv, env, message, &r, err);
    if (st == KK_OK && (!went_well(&r) || !r.out.n))
        st = said("the request cannot be signed", &r, KK_EINVAL, err);
    if (st == KK_OK) kk_bytes_add(signature, r.out.data, r.out.n);
    if (st == KK_OK && signature->failed) st = kk_no_memory(err, "a signature");
    kk_process_release(&r);
    return st;
}

kk_status kk_sshsig_verify(const char *allowed, const char *name, const char *const *env,
                           const char *scratch, const kk_bytes *message, const kk_bytes *signature,
                           kk_err *err) {
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s/signature", scratch);
    if (n < 0 || (size_t)n >= sizeof path) return kk_fail(err, KK_EINVAL, "a path is too long");
    KK_TRY(kk_folder_put(path, kk_bytes_text(signature), signature->n, err));
    const char *const argv[] = {
        "ssh-keygen",        "-Y", "verify", "-f", allowed, "-I", name, "-n",
        KK_SSHSIG_NAMESPACE, "-s", path,     NULL};
    kk_process_result r = {.code = 0};
    kk_status st = keygen(argv, env, message, &r, err);
    if (st == KK_OK && !went_well(&r)) {
        char what[100];
        snprintf(what, sizeof what, "the signature is not that of %s", name);
        st = said(what, &r, KK_EINVAL, err);
    }
    unlink(path);
    kk_process_release(&r);
    return st;
}

kk_status kk_sshsig_generate(const char *path, const char *comment, const char *const *env,
                             kk_err *err) {
    const char *const argv[] = {"ssh-keygen", "-q",    "-t", "ed25519", "-N", "",
                                "-C",         comment, "-f", path,      NULL};
    kk_process_result r = {.code = 0};
    kk_status st = keygen(argv, env, NULL, &r, err);
    if (st == KK_OK && !went_well(&r)) st = said("no key was made", &r, KK_EIO, err);
    kk_process_release(&r);
    return st;
}
