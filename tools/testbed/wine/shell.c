/* shell.exe: runs the line in the variable SHELL_LINE as Windows' OpenSSH runs a command: cmd.exe /c "LINE", quotes and all.
   (A line given to `wine cmd.exe /c` has its quotes escaped for C programs, which cmd.exe does not understand.) */
#include <stdio.h>
#include <windows.h>

int main(void)
{
    static char line[32768], command[33000];
    STARTUPINFOA start = {sizeof start};
    PROCESS_INFORMATION process;
    DWORD status = 1;

    if (GetEnvironmentVariableA("SHELL_LINE", line, sizeof line))
        snprintf(command, sizeof command, "cmd.exe /c \"%s\"", line);
    else
        snprintf(command, sizeof command, "cmd.exe");
    SetEnvironmentVariableA("SHELL_LINE", NULL);
    start.dwFlags = STARTF_USESTDHANDLES;
    start.hStdInput = GetStdHandle(STD_INPUT_HANDLE);
    start.hStdOutput = GetStdHandle(STD_OUTPUT_HANDLE);
    start.hStdError = GetStdHandle(STD_ERROR_HANDLE);
    if (!CreateProcessA(NULL, command, NULL, NULL, TRUE, 0, NULL, NULL, &start, &process)) {
        fprintf(stderr, "cmd.exe: error %lu\n", GetLastError());
        return 1;
    }
    WaitForSingleObject(process.hProcess, INFINITE);
    GetExitCodeProcess(process.hProcess, &status);
    return (int)status;
}
