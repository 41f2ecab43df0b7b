// Exceptions: thrown through frames with destructors, caught by base class, thrown again, and of plain types.
extern "C" int puts(const char *);
struct Guard { const char *n; ~Guard() { puts(n); } };
struct Base { virtual ~Base() {} virtual int code() const { return 1; } };
struct Derived : Base { int v; Derived(int v) : v(v) {} int code() const override { return v; } };
__attribute__((noinline)) int deep(int n) { Guard g{"unwound"}; if (n == 0) throw Derived(40); return deep(n - 1) + 1; }
int main() {
    int sum = 0;
    try { deep(2); } catch (const Base &b) { puts("caught base"); sum += b.code(); }
    try { try { throw 1; } catch (...) { puts("rethrow"); throw; } } catch (int i) { puts("caught int"); sum += i; }
    try { throw "text"; } catch (const char *s) { puts(s); sum += 1; }
    return sum;
}
