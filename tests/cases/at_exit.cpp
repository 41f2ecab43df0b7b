// What runs before and after main, in which order, in two objects.
extern "C" int puts(const char *);
extern "C" int atexit(void (*)());
extern "C" void exit(int);

void say(const char *text);

struct Object {
    const char *name;
    Object(const char *name) : name(name) { say(name); }
    ~Object() { say(name); }
};

static void first() { say("first"); }
static void nested() { say("nested"); }
static void second() { say("second"); atexit(nested); }

__attribute__((destructor(101))) static void last_of_all() { say("destructor 101"); }
__attribute__((destructor)) static void destructor() { say("destructor"); }
__attribute__((constructor(101))) static void first_of_all() { say("constructor 101"); }

static Object object("object");

int main(int argc, char **) {
    static Object local("local");
    atexit(first);
    atexit(second);
    say("main");
    if (argc > 1) exit(6);
    return 5;
}
