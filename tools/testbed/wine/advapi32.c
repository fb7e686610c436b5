/* advapi32.dll for wicd.exe: all of Wine's (kept as advapi32w.dll, which the other exports lead to), but with an
   InitiateSystemShutdownExW that restarts the host. Wine's says that it will and does nothing. */
#include <stdio.h>
#include <windows.h>

__declspec(dllexport) BOOL WINAPI InitiateSystemShutdownExW(LPWSTR machine, LPWSTR message, DWORD timeout, BOOL force,
                                                            BOOL reboot, DWORD reason)
{
    char command[64];
    STARTUPINFOA start = {sizeof start};
    PROCESS_INFORMATION process;

    (void)machine, (void)message, (void)force, (void)reason;
    snprintf(command, sizeof command, "shutdown.exe %s /t %lu", reboot ? "/r" : "/s", timeout);
    return CreateProcessA(NULL, command, NULL, NULL, FALSE, DETACHED_PROCESS, NULL, NULL, &start, &process);
}
