// Objects that C++ constructs when they are first met, beside an exception: the runtime's own guards and lists.
extern "C" int puts(const char *);
struct Said {
    const char *end;
    Said(const char *begin, const char *end) : end(end) { puts(begin); }
    ~Said() { puts(end); }
};
thread_local Said of_thread("thread begins", "thread ends");

__attribute__((noinline)) static int meet() {
    static Said once("static begins", "static ends");
    return once.end[0] == 's';
}

int main() {
    int met = meet() + meet() + (of_thread.end[0] == 't');
    try {
        throw met;
    } catch (int value) {
        return value + 39;
    }
}
