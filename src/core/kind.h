/* kind.h - the kinds of layers, and of K/V pages: layers of a kind share a mask, an attention
 * shape and their pages.  Latents, of which there is one row for all layers, have pages of their
 * own and no layers. */
#ifndef KK_CORE_KIND_H
#define KK_CORE_KIND_H

typedef enum { KK_SLIDING, KK_FULL, KK_LATENT, KK_KINDS } kk_kind;

enum { KK_LAYER_KINDS = KK_LATENT }; /* kinds of layers; latents have no layer of their own */

#endif
