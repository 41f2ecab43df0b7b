// Indirect functions: called, pointed to, shared and local, also by constructors and from another object.
int puts(const char *);

static int shared_one(void) { return puts("shared"); }
static int (*pick_shared(void))(void) { return shared_one; }
int shared(void) __attribute__((ifunc("pick_shared")));

static int own_one(void) { return puts("own"); }
static void *pick_own(void) { return (void *)own_one; }
static int own(void) __attribute__((ifunc("pick_own")));

int (*pointer)(void) = shared;
extern int (*other_pointer)(void);
extern int call_shared(void);

int main(void) {
    if (pointer != shared || other_pointer != pointer || pointer == shared_one) return 1;
    own();
    call_shared();
    return 42;
}
