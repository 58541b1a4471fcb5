/* layer.h - a decoder layer and the head over whatever a device has: its own operation where it
 * takes them, the small operations of backend.h where it does not. */
#ifndef KK_BACKEND_LAYER_H
#define KK_BACKEND_LAYER_H

#include "backend/backend.h"

/* Runs a layer or the head: offers it to the device, unless the layer has an observer; `count` is
 * added to. */
kk_status kk_layer_run(const kk_backend *be, kk_dev *dev, const kk_layer_args *a, kk_fused *count,
                       kk_err *err);
kk_status kk_head_run(const kk_backend *be, kk_dev *dev, const kk_head_args *a, kk_fused *count,
                      kk_err *err);

/* The small operations, one after the other: what a layer is. */
kk_status kk_layer_by_ops(const kk_backend *be, kk_dev *dev, const kk_layer_args *a, kk_err *err);
kk_status kk_head_by_ops(const kk_backend *be, kk_dev *dev, const kk_head_args *a, kk_err *err);

/* The arguments of a layer's small operations that have many, for devices that fuse others. */
kk_store_args kk_layer_store(const kk_layer_args *a);
kk_attend_args kk_layer_attend(const kk_layer_args *a);
kk_route_args kk_layer_route(const kk_layer_args *a);
kk_experts_args kk_layer_experts(const kk_layer_args *a);

#endif
