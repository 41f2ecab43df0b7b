// Thread-local storage in every model that the compiler's options ask for.
int puts(const char *);

__thread int counter = 40;
static __thread char text[8] = "local";
__thread long zeroed[100];
_Alignas(128) __thread char aligned[3] = "al";
extern __thread int other;
extern int next(void);

static int constructed;
__attribute__((constructor)) static void construct(void) { constructed = counter; }

int main(void) {
    puts(text);
    if (constructed != 40 || (unsigned long)aligned % 128 != 0 || aligned[1] != 'l') return 1;
    for (int i = 0; i < 100; i++)
        if (zeroed[i] != 0) return 2;
    zeroed[99] = next() + next();
    counter += (int)zeroed[99] + other;
    return counter;
}
