// An address in one byte: out of range wherever the code is.
__asm__(".data\n.globl narrow\nnarrow:\n.byte main\n.text");
extern unsigned char narrow;
int main(void) { return narrow; }
