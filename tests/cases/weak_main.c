// The weak definitions here lose to the strong ones of weak_strong.c.
int puts(const char *);
__attribute__((weak)) int fallback(void) { return 1; }
__attribute__((weak)) int level = 2;
__attribute__((weak)) const char *name(void) { return "weak"; }

int main(void) {
    puts(name());
    return fallback() + level;
}
