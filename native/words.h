/* A word of the shared page, and how it is read and written where no order is asked for. */
#ifndef CARPOOL_WORDS_H
#define CARPOOL_WORDS_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t cp_word;
#define GET(word) atomic_load_explicit(&(word), memory_order_relaxed)
#define PUT(word, value) atomic_store_explicit(&(word), (value), memory_order_relaxed)

#endif
