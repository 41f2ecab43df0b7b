// A weak undefined function and a weak undefined datum are null; weak definitions that nothing overrides stand.
int puts(const char *);
__attribute__((weak)) void nobody_defines_this(void);
__attribute__((weak)) extern int nor_this;
__attribute__((weak)) int fallback(void) { return 12; }
__attribute__((weak)) int level = 30;

int main(void) {
    if (nobody_defines_this)
        return 100;
    if (&nor_this)
        return 101;
    puts("weak undefined symbols are null");
    return fallback() + level;
}
