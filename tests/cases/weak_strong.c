// The strong halves of weak_main.c.
int fallback(void) { return 40; }
int level = 5;
const char *name(void) { return "strong"; }
