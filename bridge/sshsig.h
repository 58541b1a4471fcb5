/* sshsig.h - signatures with SSH keys, by the program ssh-keygen. */
#ifndef KK_BRIDGE_SSHSIG_H
#define KK_BRIDGE_SSHSIG_H

#include "bridge/process.h"

/* What signatures of this bridge are for: one made for anything else does not hold here. */
#define KK_SSHSIG_NAMESPACE "kakeya-bridge"
enum { KK_SSHSIG_BYTES = 16384 };

/* Signs with a key: its private file, or its public one where an agent has it.  An agent is the way
 * to use a key with a passphrase, as there is no terminal to ask at. */
kk_status kk_sshsig_sign(const char *key, const char *const *env, const kk_bytes *message,
                         kk_bytes *signature, kk_err *err);
/* KK_EINVAL when the signature is not that of a key which the file of allowed signers
 * (ssh-keygen(1), ALLOWED SIGNERS) has for this name.  scratch: a folder to write in. */
kk_status kk_sshsig_verify(const char *allowed, const char *name, const char *const *env,
                           const char *scratch, const kk_bytes *message, const kk_bytes *signature,
                           kk_err *err);
/* Makes a new key without a passphrase at path, and path.pub. */
kk_status kk_sshsig_generate(const char *path, const char *comment, const char *const *env,
                             kk_err *err);

#endif
