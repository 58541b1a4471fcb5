/* clock.h - monotonic seconds, for durations only. */
#ifndef KK_CORE_CLOCK_H
#define KK_CORE_CLOCK_H

double kk_now(void);

#endif
