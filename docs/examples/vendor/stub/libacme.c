/* Plays libacme.so. XPU_ACME_CARDS names a file with a line for each card: its uuid and ok, down or mute.
   Without the file there is no driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST 16

struct card { char uuid[64], state[8]; };

static struct card told[MOST]; /* as acme_wait last saw them */

static int read_cards(struct card *cards) {
  const char *name = getenv("XPU_ACME_CARDS");
  FILE *file = name ? fopen(name, "r") : NULL;
  int count = 0;
  if (!file) return -1;
  while (count < MOST && fscanf(file, "%63s %7s", cards[count].uuid, cards[count].state) == 2) count++;
  fclose(file);
  return count;
}

int acme_open(void) {
  struct card cards[MOST];
  memset(told, 0, sizeof told);
  return read_cards(cards) < 0;
}

int acme_count(void) {
  struct card cards[MOST];
  return read_cards(cards);
}

int acme_uuid(int index, char *text, int size) {
  struct card cards[MOST];
  int count = read_cards(cards);
  if (index < 0 || index >= count || !strcmp(cards[index].state, "mute")) return 1;
  snprintf(text, size, "%s", cards[index].uuid);
  return 0;
}

int acme_gib(int index) { return index < 0 ? 0 : 80; }

/* The first card is used by the process that asks: 1 GiB of the card and a quarter of the time. */
int acme_load(int index, long long *bytes, int *percent) {
  *bytes = index == 0 ? 1LL << 30 : 0;
  *percent = index == 0 ? 25 : 0;
  return index < 0;
}

/* Returns how many processes were written; -1 where that is not known. */
int acme_processes(int index, int *pids, long long *bytes, int most) {
  if (index != 0 || most < 1) return 0;
  pids[0] = getpid();
  bytes[0] = 1LL << 30;
  return 1;
}

/* Returns 1 where a card's link went down, 2 where it was reset, 0 where nothing happened in time. */
int acme_wait(int milliseconds, int *index) {
  struct timespec pause = {0, 20 * 1000 * 1000};
  for (int waited = 0; waited <= milliseconds; waited += 20) {
    struct card cards[MOST];
    int count = read_cards(cards);
    for (int i = 0; i < count; i++) {
      int is_down = !strcmp(cards[i].state, "down"), was_down = !strcmp(told[i].state, "down");
      told[i] = cards[i];
      *index = i;
      if (is_down != was_down) return is_down ? 1 : 2;
    }
    nanosleep(&pause, NULL);
  }
  return 0;
}
