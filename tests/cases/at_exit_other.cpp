// The other object of at_exit.cpp.
extern "C" int puts(const char *);

void say(const char *text) { puts(text); }

struct Other {
    ~Other() { say("other"); }
};

static Other other;

__attribute__((destructor(200))) static void near_last() { say("destructor 200"); }
__attribute__((constructor(200))) static void second() { say("constructor 200"); }
static void before(int, char **argv, char **) { say(argv && argv[0] ? "preinit" : "preinit without arguments"); }
__attribute__((section(".preinit_array"), used)) static void (*entry)(int, char **, char **) = before;
