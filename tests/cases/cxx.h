// What both halves of the C++ program see.
extern "C" int puts(const char *);

struct Shape {
    virtual int area() const = 0;
    virtual const char *name() const { return "shape"; }
};

const Shape *other_shape();

// One counter for the whole program, though every object that includes this defines it.
inline int &counter() {
    static int count;
    return count;
}

template <typename T> T larger(T a, T b) {
    counter()++;
    return a > b ? a : b;
}

inline int calls_of_larger() { return counter(); }
