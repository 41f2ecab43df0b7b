// Another object's indirect function.
extern int shared(void);
int (*other_pointer)(void) = shared;
int call_shared(void) { return shared(); }

__attribute__((constructor)) static void construct(void) { shared(); }
