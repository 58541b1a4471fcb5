/* manual.h - the manual page, made from the option tables and the prose of docs/kakeya.1.in. */
#ifndef KAKEYA_CLI_MANUAL_H
#define KAKEYA_CLI_MANUAL_H

/* `kakeya help --man`: prints it as roff; returns the exit status. */
int manual_print(void);

#endif
